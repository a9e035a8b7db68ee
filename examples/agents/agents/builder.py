"""An agent that writes and repairs code: a small module for Roman numerals, with the mistakes of a first version.

`implement` writes the module and its changelog; inputs: `goal`. `change` edits what is in the workspace by the findings
of a review; inputs: `round`, `findings`. The same inputs and workspace give the same bytes: no clock, no chance.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hapax_agent import Agent, Failed  # noqa: E402

MODULE, CHANGELOG = "src/roman.py", "CHANGELOG.md"

FIRST_VERSION = '''\
"""Roman numerals."""

NUMERALS = [
    (1000, "M"),
    (500, "D"),
    (100, "C"),
    (50, "L"),
    (10, "X"),
    (5, "V"),
    (1, "I"),
]


def to_roman(number):
    """The numeral of a number from 1 to 3999."""
    text = ""
    for value, numeral in NUMERALS:
        while number >= value:
            text += numeral
            number -= value
    return text


def from_roman(text):
    """The number of a numeral."""
    number = 0
    for value, numeral in NUMERALS:
        while text.startswith(numeral):
            number += value
            text = text[len(numeral):]
    return number
'''

TABLE = re.compile(r"NUMERALS = \[\n(.*?)\]\n", re.DOTALL)
ROW = re.compile(r'\((\d+), "([A-Z]+)"\)')

GUARDS = {
    "to_roman": (
        '    text = ""\n',
        '    if not 1 <= number <= 3999:\n        raise ValueError(f"{number} has no numeral")\n    text = ""\n',
    ),
    "from_roman": (
        "    return number\n",
        '    if text:\n        raise ValueError(f"{text!r} is no numeral")\n    return number\n',
    ),
}
"""For each function, what a check of its argument stands in for."""

agent = Agent("builder")


@agent.on("implement")
def implement(task):
    task.progress(message="writing the first version")
    task.artifact(MODULE, FIRST_VERSION)
    task.artifact(CHANGELOG, f"# Changelog\n\n- Implemented: {one_line(task.inputs['goal'])}\n")
    return {"files": [CHANGELOG, MODULE]}


@agent.on("change")
def change(task):
    source, log = read(task, MODULE), read(task, CHANGELOG)
    done, unclear = [], []
    for finding in task.inputs["findings"]:
        repaired = repair(source, finding)
        (unclear if repaired is None else done).append(one_line(finding["message"]))
        source = repaired or source
    if unclear:
        return "clarification", {"questions": [f"How is this to be mended: {message}?" for message in unclear]}
    task.artifact(MODULE, source)
    lines = [f"- Mended in round {task.inputs['round']}: {message}\n" for message in done]
    task.artifact(CHANGELOG, log + "".join(lines))
    return {"repaired": done}


def read(task, path):
    try:
        return (task.workspace / path).read_text("utf-8")
    except FileNotFoundError:
        raise Failed("not_implemented", f"there is no {path} to change") from None


def one_line(text):
    return " ".join(str(text).split())


def repair(source, finding):
    """The source without what was found, or nothing where it isn't clear what to do."""
    function, check = finding.get("function"), finding.get("check")
    if check == "gives" and function == "to_roman":
        return with_numeral(source, finding["argument"], finding["expected"])
    if check == "gives" and function == "from_roman":
        return with_numeral(source, finding["expected"], finding["argument"])
    if check == "raises" and function in GUARDS:
        return with_guard(source, function)
    return None


def with_numeral(source, value, numeral):
    """The table knows a numeral of its own for a value; larger values come first."""
    table = TABLE.search(source)
    if table is None:
        return None
    rows = {int(number): text for number, text in ROW.findall(table.group(1))}
    rows[value] = numeral
    lines = "".join(f'    ({number}, "{rows[number]}"),\n' for number in sorted(rows, reverse=True))
    return source[: table.start(1)] + lines + source[table.end(1) :]


def with_guard(source, function):
    before, after = GUARDS[function]
    head, name, body = source.partition(f"def {function}(")
    if after in body:
        return source
    return head + name + body.replace(before, after, 1) if before in body else None


if __name__ == "__main__":
    agent.run()

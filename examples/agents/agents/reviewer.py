"""An agent that reviews: it runs the module of the workspace against what it knows of Roman numerals itself.

`review`; inputs: `round`, which makes every review new work. It answers `approved`, or `changes_requested` with
findings: what was called, what came, what should have come. It writes no file.

What a machine does to a review is no verdict on the code: one that is killed, or short of memory, may be tried again.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hapax_agent import Agent, Failed  # noqa: E402

MODULE = "src/roman.py"
MAX_FINDINGS = 20
LIMIT_S = 60
"""Seconds that the code may compute: its own, however busy the machine is."""

PATIENCE_S = 600
"""Seconds of the clock."""

DISTURBED = 75
"""How a runner ends that lacked something of the machine's."""

PLACES = [
    ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"],
    ["", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX", "XC"],
    ["", "C", "CC", "CCC", "CD", "D", "DC", "DCC", "DCCC", "CM"],
    ["", "M", "MM", "MMM"],
]

RUNNER = """\
import contextlib, errno, io, json, resource, sys

LACKS = (errno.EAGAIN, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)

def lacks(error):
    return isinstance(error, MemoryError) or isinstance(error, OSError) and error.errno in LACKS

def call(function, argument):
    try:
        return ["gives", function(argument)]
    except Exception as error:
        if lacks(error):
            raise
        return ["raises", type(error).__name__]

limit_s, disturbed, source, calls = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
print("begun", flush=True)
with contextlib.redirect_stdout(io.StringIO()):
    module = {"__name__": "reviewed"}
    try:
        exec(compile(source, "the module", "exec"), module)
        answer = [call(module.get(name), argument) for name, argument in calls]
    except BaseException as error:
        if lacks(error):
            sys.exit(disturbed)
        answer = f"{type(error).__name__}: {error}"
print(json.dumps(answer, default=repr))
"""
"""Runs the code in a process of its own: whatever it does, the reviewer lives, and the workspace stays as it is."""

agent = Agent("reviewer")


@agent.on("review")
def review(task):
    """Single places are tried first: what is wrong with them explains what would be wrong with every number."""
    source, checks = read(task), 0
    for cases in (places(), every_number()):
        task.progress(message=f"{len(cases)} checks")
        checks += len(cases)
        found = findings(source, cases)
        if found:
            payload = {"round": task.inputs["round"], "checks": checks, "findings": found[:MAX_FINDINGS]}
            return "changes_requested", payload
    return "approved", {"round": task.inputs["round"], "checks": checks}


def findings(source, cases):
    got = run(source, [(function, argument) for function, argument, _ in cases])
    if isinstance(got, str):
        return [{"check": "runs", "file": MODULE, "message": f"the module doesn't run: {got}"}]
    return [finding(case, result) for case, result in zip(cases, got) if list(case[2]) != result]


def numeral(number):
    digits = reversed(str(number))
    return "".join(reversed([place[int(digit)] for place, digit in zip(PLACES, digits)]))


def places():
    """(function, argument, what must come of it) for each digit of each place, and for what has no numeral."""
    numbers = [digit * 10**place for place, row in enumerate(PLACES) for digit in range(1, len(row))]
    refused = [("to_roman", number, ("raises", "ValueError")) for number in (0, -1, 4000)]
    return [*map(there, numbers), *refused, ("from_roman", "ABC", ("raises", "ValueError"))]


def every_number():
    return [case for number in range(1, 4000) for case in (there(number), back(number))]


def there(number):
    return "to_roman", number, ("gives", numeral(number))


def back(number):
    return "from_roman", numeral(number), ("gives", number)


def read(task):
    try:
        return (task.workspace / MODULE).read_text("utf-8")
    except FileNotFoundError:
        raise Failed("nothing_to_review", f"there is no {MODULE}") from None


def run(source, calls):
    """What came of each call, or why there is nothing. It is the code's own doing, or no verdict at all."""
    command, text = [sys.executable, "-I", "-B", "-c", RUNNER], json.dumps([LIMIT_S, DISTURBED, source, calls])
    try:
        pipes = {"input": text, "capture_output": True, "text": True, "errors": "backslashreplace"}
        done = subprocess.run(command, timeout=PATIENCE_S, **pipes)
    except subprocess.TimeoutExpired:
        raise Failed("disturbed", f"the module is not done after {PATIENCE_S} s", retryable=True) from None
    if done.returncode == -signal.SIGXCPU:
        return f"it computes for longer than {LIMIT_S} s"
    begun, _, answer = done.stdout.partition("\n")
    if done.returncode < 0 or done.returncode == DISTURBED or begun != "begun":
        raise Failed("disturbed", f"the module could not be run: {how_it_ended(done)}", retryable=True)
    try:
        return json.loads(answer)
    except ValueError:
        return f"it ended with {done.returncode}"


def how_it_ended(done):
    code = done.returncode
    return f"signal {-code} ended it" if code < 0 else f"it ended with {code} and {done.stderr[-200:]!r}"


def finding(case, got):
    function, argument, (check, expected) = case
    message = f"{function}({argument!r}) {got[0]} {got[1]!r}, but must {check[:-1]} {expected!r}"
    parts = {"check": check, "file": MODULE, "function": function, "argument": argument, "expected": expected}
    return {**parts, "got": got[1], "message": message}


if __name__ == "__main__":
    agent.run()

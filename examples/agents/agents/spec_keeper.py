"""An agent that keeps the specification true: SPEC.md is written anew from the code and the changelog that are there.

`update_spec`; inputs: none are needed. Functions are read from the source, never run.
"""

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hapax_agent import Agent, Failed  # noqa: E402

SPEC, CHANGELOG = "SPEC.md", "CHANGELOG.md"

agent = Agent("spec_keeper")


@agent.on("update_spec")
def update_spec(task):
    modules = sorted((task.workspace / "src").glob("*.py"))
    if not modules:
        raise Failed("no_code", "there is no module in src")
    sections = [section(module) for module in modules]
    changes = read_changes(task.workspace / CHANGELOG)
    task.artifact(SPEC, "\n".join(["# Specification", "", *sections, "## History", "", *changes, ""]))
    return {"modules": [module.name for module in modules], "changes": len(changes)}


def section(module):
    """A heading for a module, and a line for each of its public functions."""
    tree = ast.parse(module.read_text("utf-8"))
    public = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    lines = [f"- `{node.name}({ast.unparse(node.args)})`: {first_line(node)}" for node in public]
    return "\n".join([f"## {module.stem}", "", first_line(tree), "", *lines, ""])


def first_line(node):
    return (ast.get_docstring(node) or "Not described.").splitlines()[0]


def read_changes(path):
    """The changelog's entries, the latest first."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [line for line in reversed(lines) if line.startswith("- ")]


if __name__ == "__main__":
    agent.run()

"""The agent of the tests: it counts its executions, waits and dies where it is told to, and can be wrong.

`HAPAX_DIE_AT` names the point at which it kills itself. `HAPAX_CANARY` plants a mistake that a test must notice:
`cache_after_answer` writes the answer down after it was sent, `key_with_message_id` takes a command that was sent again
for new work.
"""

import hashlib
import os
import resource
import signal
import subprocess
import sys
import threading

from hapax_agent import Agent, Failed

CANARY = os.environ.get("HAPAX_CANARY", "")
DIE_AT = os.environ.get("HAPAX_DIE_AT", "")
OPTIONS = {name: int(value) for name, _, value in (word.partition("=") for word in sys.argv[1:])}


def die_at(point):
    if point == DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)


class Probe(Agent):
    """Each point at which an agent can die lies between two of these calls."""

    def key_of(self, command):
        key = super().key_of(command)
        if CANARY == "key_with_message_id":
            key = "ik:" + hashlib.sha256(f"{key}{command['message_id']}".encode()).hexdigest()
        return key

    def _begin(self, flight):
        die_at("before started")
        super()._begin(flight)
        die_at("after started")

    def _settle(self, flight, event):
        if CANARY == "cache_after_answer":
            self._answer(flight, event)
            self._record(flight, event)
        else:
            super()._settle(flight, event)

    def _record(self, flight, event):
        die_at("before done")
        recorded = super()._record(flight, event)
        die_at("after done")
        return recorded

    def _answer(self, flight, event):
        super()._answer(flight, event)
        die_at("after answer")


agent = Probe("probe", **OPTIONS)


def executed(task):
    """Notes an execution where no crash can undo it, and returns how many there were."""
    key = task.command["idempotency_key"]
    with open(agent.state.parent / "executions", "a+", encoding="utf-8") as file:
        file.write(f"{key}\n")
        file.flush()
        file.seek(0)
        return file.read().count(key)


@agent.on("work")
def work(task):
    count = executed(task)
    task.artifact("out/made.txt", f"made for {task.inputs.get('what')}\n")
    die_at("in work")
    return {"count": count, "what": task.inputs.get("what"), "files": sorted(os.listdir(task.staging))}


@agent.on("hold")
def hold(task):
    """Says that it has begun, then waits until the test puts a byte into a pipe."""
    count = executed(task)
    (task.staging / "half-done.txt").write_text("half of", "utf-8")
    task.progress(50, "holding")
    with open(task.inputs["gate"], "rb", buffering=0) as gate:
        gate.read(1)
    (task.staging / "half-done.txt").unlink()
    return {"count": count, "was_cut_off": task.was_cut_off}


@agent.on("chat")
def chat(task):
    for number in range(task.inputs["lines"]):
        task.log("info", f"line {number}", number=number)
    task.token(task.inputs.get("token", ""))
    return {"lines": task.inputs["lines"]}


@agent.on("linger")
def linger(task):
    """Leaves a thread behind that speaks on and on, before the answer and after it."""
    speaks = threading.Event()

    def speak():
        for number in range(task.inputs["times"]):
            task.progress(message=str(number))
            speaks.set()

    threading.Thread(target=speak, daemon=True).start()
    speaks.wait()
    return {}


@agent.on("fail")
def fail(task):
    count = executed(task)
    raise Failed("no_luck", f"failed {count} times", retryable=task.inputs["retryable"])


@agent.on("misbehave")
def misbehave(task):
    kind = task.inputs["how"]
    executed(task)
    if kind == "raise":
        raise KeyError("a bug\udcff")
    if kind == "exit":
        sys.exit(3)
    if kind == "print":
        print("a stray line")
        subprocess.run(["sh", "-c", "echo a stray child; cat"], check=True)
        return {"printed": True}
    if kind == "huge_event":
        task.event("note", {"huge": "x" * 300_000})
    if kind == "late":
        task.event("note", {})
        return "changes", "no payload"
    return {"nan": {"nan": float("nan"), "huge": "x" * 300_000}[kind]}


@agent.on("fill_disk")
def fill_disk(task):
    """From here on no file of this process may grow: what a full disk does to it. The next attempt finds room."""
    executed(task)
    if not task.was_cut_off:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return {"was_cut_off": task.was_cut_off}


@agent.on("escape")
def escape(task):
    """Says which of the paths are refused by the kit itself. Those that the probe has put there already are `made`."""
    os.symlink("/", task.staging / "link")
    os.symlink(".", task.staging / "inner")
    (task.staging / "real.txt").write_text("real", "utf-8")
    os.symlink("real.txt", task.staging / "leaf")
    made, refused = ("leaf", "inner"), []
    for path in task.inputs["paths"]:
        try:
            task.artifact(path, None if path in made else "x")
        except Failed as failed:
            refused.append(path if failed.code == "path" else failed.code)
    try:
        task.artifact(os.fsdecode(b"\xff"), "x")
    except Failed as failed:
        refused.append(failed.code)
    return {"refused": refused, "taken": task.artifact("real.txt")}


@agent.on("ask")
def ask(task):
    return "clarification", {"questions": task.inputs.get("questions", ["Which one?"])}


@agent.on("echo")
def echo(task):
    return {"inputs": task.inputs, "attempt": task.attempt, "priority": task.priority, "year": task.deadline.year}


if __name__ == "__main__":
    agent.run()

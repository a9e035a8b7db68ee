"""An agent that breaks many a promise at once, each in a way that its answers don't show."""

import pathlib
import time

import hapax_agent as kit
from hapax_agent import Agent

# It takes no lock, and needs some time to start.
time.sleep(1.5)
kit._try_flock = lambda file: True
# What an earlier attempt has left in the staging folder stays there.
kit._remove = lambda folder: None
make = pathlib.Path.mkdir
kit.Path.mkdir = lambda path, **more: make(path, parents=True, exist_ok=True)
# It says when, but in no form that anybody could read.
kit._now = lambda: "yesterday"

be_checked = kit._be_checked
check_key = kit._check_key
acknowledge = Agent._acknowledge
send_answer = Agent._send_answer
read_lines = kit.Lines.__iter__


def touch_the_workspace_later(task):
    if task.task_id != "check-answer":
        (task.workspace / "junk").write_text("x")
    return be_checked(task)


def blame_somebody_else(command):
    try:
        check_key(command)
    except Exception:
        raise kit.Failed("sorry", "not my key")


def answer_acks(agent, message):
    acknowledge(agent, message)
    nobody = {"correlation_id": "", "task_id": ""}
    agent._wire.send(agent._failure(nobody, kit.Failed("protocol", "thanks")))


def go_on_behind_the_answer(agent, event, correlation_id):
    send_answer(agent, event, correlation_id)
    agent._wire.send(agent._event({**event, "correlation_id": correlation_id}, "progress", {"percent": 5}))


def take_half_lines(lines):
    for line in read_lines(lines):
        is_torn = isinstance(line, kit.ProtocolError) and "ended within" in str(line)
        if is_torn:
            # What waits behind other work is never begun once the input has ended, and the lie would not be seen.
            with agent._idle:
                agent._idle.wait_for(lambda: not agent._running)
        yield line.line if is_torn else line


kit._be_checked = touch_the_workspace_later
kit._check_key = blame_somebody_else
Agent._acknowledge = answer_acks
Agent._send_answer = go_on_behind_the_answer
kit.Lines.__iter__ = take_half_lines

agent = Agent("liar")
agent._handlers[kit.CHECK_ACTION] = kit._be_checked
agent.run()

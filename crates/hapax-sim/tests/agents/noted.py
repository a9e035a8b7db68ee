"""Runs an agent of the Python kit that says what it does: `noted.py KIT_FOLDER AGENT`.

Lines go to the pipe that HAPAX_SIM_NOTES names, one write each, so that they arrive whole, also from a process that is
killed behind them: `PID POINT KEY`, where the point is `up`, `begin` or `end`.
"""

import os
import runpy
import sys

folder, script = sys.argv[1:3]
sys.path.insert(0, folder)

import hapax_agent  # noqa: E402

notes = os.open(os.environ["HAPAX_SIM_NOTES"], os.O_WRONLY | os.O_APPEND)


def note(point, key):
    os.write(notes, f"{os.getpid()} {point} {key}\n".encode())


on = hapax_agent.Agent.on


def noted_on(agent, action):
    def register(handler):
        def noted(task):
            note("begin", task.key)
            answer = handler(task)
            note("end", task.key)
            return answer

        on(agent, action)(noted)
        return handler

    return register


hapax_agent.Agent.on = noted_on
note("up", "-")
runpy.run_path(script, run_name="__main__")

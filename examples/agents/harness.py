"""What the tests of agents share: a process over pipes, commands with their keys, and the engine's part with the files.

Nothing here waits for time to pass. A read that gets nothing within a minute is a failure, not a measurement.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from hapax_agent import canonical_json, command_key, new_message_id, snapshot_id

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60


def command(action, inputs=None, task_id="T-0001", snapshot="snap-0123456789ab", outputs=(), **changes):
    """A command as the engine sends it, with ids of its own."""
    inputs, outputs = inputs or {}, list(outputs)
    message = {
        "kind": "command", "message_id": new_message_id(), "correlation_id": f"corr-{uuid.uuid4()}",
        "task_id": task_id, "idempotency_key": command_key(action, task_id, snapshot, inputs, outputs),
        "to": {"agent_type": "probe"}, "action": action, "inputs": inputs, "expected_outputs": outputs,
        "version": {"snapshot_id": snapshot}, "deadline": "2999-01-01T00:00:00Z",
        "retry": {"attempt": 1, "max_attempts": 3}, "priority": 5,
    }
    return {**message, **changes}


def again(message):
    """The same work under fresh ids: what is sent after a crash."""
    fresh = {"message_id": new_message_id(), "correlation_id": f"corr-{uuid.uuid4()}"}
    return {**message, **fresh, "retry": {"attempt": 2, "max_attempts": 3}}


class Folders:
    """The workspace, the staging and the state folder of one agent, which outlive its processes."""

    def __init__(self, root):
        self.root = Path(root)
        self.workspace, self.staging, self.state = (self.root / name for name in ("workspace", "staging", "state"))
        for folder in (self.workspace, self.staging, self.state):
            folder.mkdir(parents=True)

    def environment(self, **more):
        own = {"HAPAX_WORKSPACE": self.workspace, "HAPAX_STAGING": self.staging, "HAPAX_AGENT_STATE": self.state}
        return {**os.environ, **{name: str(path) for name, path in own.items()}, **more}

    def staged(self, message):
        return self.staging / message["idempotency_key"][3:]

    def entry(self, message):
        return self.state / f"{message['idempotency_key'][3:]}.json"

    def executions(self, message):
        """How often an agent of the tests did this work, over all of its lives."""
        notes = self.root / "executions"
        return notes.read_text("utf-8").count(message["idempotency_key"]) if notes.exists() else 0

    def install(self, message, event):
        """What the engine does with an answer: verified files go to the workspace, and the snapshot is taken."""
        for artifact in event["artifacts"]:
            target = self.workspace / artifact["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.staged(message) / artifact["path"], target)
        return snapshot_id(self.workspace)


class Process:
    """An agent that is alive. Its messages are read by a thread, so that neither side ever blocks the other."""

    def __init__(self, folders, arguments, **environment):
        self.folders = folders
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = folders.environment(**environment)
        program = [sys.executable, *map(str, arguments)]
        self._process = subprocess.Popen(program, cwd=folders.workspace, env=environment, **pipes)
        self.pid, self.heartbeats, self.logs = self._process.pid, [], []
        self._messages, self.stderr = queue.Queue(), b""
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_lines, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read_lines(self):
        with self._process.stdout as stdout:
            for line in stdout:
                self._messages.put(json.loads(line))
        self._messages.put(None)

    def _read_errors(self):
        with self._process.stderr as stderr:
            self.stderr = stderr.read()

    def send_bytes(self, data):
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def send(self, message):
        self.send_bytes(canonical_json(message).encode("utf-8") + b"\n")
        return message

    def read(self, until=None):
        """The next message of any kind, or None at the end."""
        return self._messages.get(timeout=PATIENCE_S if until is None else max(0, until - time.monotonic()))

    def read_event(self):
        """The next event; heartbeats and logs are put aside, and don't count as signs of life."""
        until = time.monotonic() + PATIENCE_S
        while True:
            message = self.read(until)
            if message is None:
                raise EOFError(f"the agent ended: {self.stderr.decode('utf-8', 'replace')}")
            if message["kind"] == "event":
                return message
            (self.heartbeats if message["kind"] == "heartbeat" else self.logs).append(message)

    def answer_to(self, message):
        """The terminal event of a command; others in between are a failure."""
        while True:
            event = self.read_event()
            if "status" in event or event["event"] == "error":
                if event["correlation_id"] != message["correlation_id"]:
                    raise AssertionError(f"an answer to another command: {event}")
                return event

    def ask(self, message):
        return self.answer_to(self.send(message))

    def ack(self, message, **more):
        self.send({"kind": "ack", "idempotency_key": message["idempotency_key"], **more})

    def close_input(self):
        self._process.stdin.close()

    def signal(self, number):
        os.kill(self.pid, number)

    def wait(self):
        """The exit code; negative if a signal ended it."""
        code = self._process.wait(timeout=PATIENCE_S)
        for reader in self._readers:
            reader.join(timeout=PATIENCE_S)
        return code

    def kill(self):
        """As a crash would end it. Harmless when it has ended."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        code = self.wait()
        if not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        return code

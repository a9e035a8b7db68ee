"""The three example agents at work on one workspace: built, found wanting, repaired, approved, described."""

import importlib.util
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from hapax_agent import Failed, snapshot_id
from harness import HERE, Folders, Process, again, command

MODULE = {"path": "src/roman.py", "required": True}
CHANGELOG = {"path": "CHANGELOG.md", "required": True}


class Agents(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)

    def project(self, name):
        """A workspace in which each agent has a staging and a state folder of its own."""
        folders = {agent: Folders(self.root / name / agent) for agent in ("builder", "reviewer", "spec_keeper")}
        workspace = self.root / name / "workspace"
        workspace.mkdir()
        agents = {}
        for agent, own in folders.items():
            own.workspace = workspace
            agents[agent] = Process(own, [HERE / "agents" / f"{agent}.py"])
            self.addCleanup(agents[agent].kill)
        return agents

    def turn(self, agent, action, inputs, outputs=()):
        """One command, with its files installed as the engine does it."""
        message = command(action, inputs, snapshot=snapshot_id(agent.folders.workspace), outputs=outputs)
        event = agent.ask(message)
        agent.folders.install(message, event)
        return event

    def play(self, name):
        """The whole loop: what each agent answered, but for what is its own on every day."""
        agents = self.project(name)
        builder, reviewer, keeper = agents["builder"], agents["reviewer"], agents["spec_keeper"]
        events = [self.turn(builder, "implement", {"goal": "Roman numerals"}, [MODULE, CHANGELOG])]
        events.append(self.turn(reviewer, "review", {"round": 1}))
        inputs = {"round": 1, "findings": events[-1]["payload"].get("findings", [])}
        events.append(self.turn(builder, "change", inputs, [MODULE, CHANGELOG]))
        events.append(self.turn(reviewer, "review", {"round": 2}))
        events.append(self.turn(keeper, "update_spec", {}, [{"path": "SPEC.md", "required": True}]))
        own = ("message_id", "correlation_id", "occurred_at")
        return [{name: event[name] for name in event if name not in own} for event in events], builder.folders.workspace

    def test_the_first_version_is_found_wanting_and_the_second_is_approved(self):
        events, workspace = self.play("project")
        statuses = ["success", "changes_requested", "success", "approved", "success"]
        self.assertEqual([event["status"] for event in events], statuses, events)
        findings = events[1]["payload"]["findings"]
        self.assertEqual((findings[0]["argument"], findings[0]["got"], findings[0]["expected"]), (4, "IIII", "IV"))
        self.assertEqual(len(findings), 10, "the rest would follow from these")
        spec = (workspace / "SPEC.md").read_text("utf-8")
        self.assertIn("- `to_roman(number)`: The numeral of a number from 1 to 3999.", spec)
        self.assertIn("- Implemented: Roman numerals", spec)
        self.assertEqual(sorted(os.listdir(workspace)), ["CHANGELOG.md", "SPEC.md", "src"])

    def test_the_same_work_gives_the_same_bytes_anywhere(self):
        first, one = self.play("one")
        second, two = self.play("another/place")
        self.assertEqual(first, second)
        self.assertEqual(snapshot_id(one), snapshot_id(two))

    def test_a_round_is_part_of_the_work_so_the_second_review_looks_again(self):
        agents = self.project("project")
        self.turn(agents["builder"], "implement", {"goal": "x"}, [MODULE, CHANGELOG])
        first = command("review", {"round": 1}, snapshot=snapshot_id(agents["reviewer"].folders.workspace))
        rounds = [agents["reviewer"].ask(message)["payload"]["round"] for message in (first, again(first))]
        rounds.append(self.turn(agents["reviewer"], "review", {"round": 2})["payload"]["round"])
        self.assertEqual(rounds, [1, 1, 2])

    def test_code_that_does_not_run_is_a_finding_and_the_builder_asks_about_it(self):
        agents = self.project("project")
        workspace = agents["reviewer"].folders.workspace
        (workspace / "src").mkdir()
        (workspace / "src" / "roman.py").write_text("def to_roman(:\n")
        (workspace / "CHANGELOG.md").write_text("# Changelog\n")
        event = self.turn(agents["reviewer"], "review", {"round": 1})
        self.assertEqual(event["status"], "changes_requested")
        self.assertIn("SyntaxError", event["payload"]["findings"][0]["message"])
        inputs = {"round": 1, "findings": event["payload"]["findings"]}
        event = self.turn(agents["builder"], "change", inputs, [MODULE])
        self.assertEqual((event["status"], len(event["payload"]["questions"])), ("clarification", 1))

    def test_a_review_that_was_disturbed_is_no_verdict_and_the_next_one_is_as_if_nothing_had_been(self):
        agents = self.project("project")
        self.turn(agents["builder"], "implement", {"goal": "x"}, [MODULE, CHANGELOG])
        workspace, mark = agents["reviewer"].folders.workspace, self.root / "killed"
        kills_itself_once = f"""
import os, signal
if not os.path.exists({str(mark)!r}):
    os.mkdir({str(mark)!r})
    os.kill(os.getpid(), signal.SIGKILL)
"""
        with open(workspace / "src" / "roman.py", "a", encoding="utf-8") as module:
            module.write(kills_itself_once)
        message = command("review", {"round": 1}, snapshot=snapshot_id(workspace))
        event = agents["reviewer"].ask(message)
        self.assertEqual((event["status"], event["payload"]["retryable"]), ("failed", True), event)
        self.assertIn("signal 9", event["payload"]["message"])
        event = agents["reviewer"].ask(again(message))
        self.assertEqual((event["status"], len(event["payload"]["findings"])), ("changes_requested", 10))

    def test_an_empty_workspace_is_a_failure_that_says_so(self):
        agents = self.project("project")
        codes = [
            self.turn(agents["reviewer"], "review", {"round": 1})["payload"]["code"],
            self.turn(agents["builder"], "change", {"round": 1, "findings": []})["payload"]["code"],
            self.turn(agents["spec_keeper"], "update_spec", {})["payload"]["code"],
        ]
        self.assertEqual(codes, ["nothing_to_review", "not_implemented", "no_code"])


class Verdicts(unittest.TestCase):
    """What the reviewer takes for the code's own doing, and what for the machine's."""

    def setUp(self):
        place = importlib.util.spec_from_file_location("reviewer", HERE / "agents" / "reviewer.py")
        self.reviewer = importlib.util.module_from_spec(place)
        place.loader.exec_module(self.reviewer)

    def assert_disturbed(self, source, calls=()):
        with self.assertRaises(Failed, msg=source) as raised:
            self.reviewer.run(source, list(calls))
        self.assertEqual((raised.exception.code, raised.exception.retryable), ("disturbed", True), source)

    def test_a_signal_or_a_lack_of_the_machine_is_no_verdict(self):
        for name in ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGBUS"):
            self.assert_disturbed(f"import os, signal; os.kill(os.getpid(), signal.{name})")
        for error in ("MemoryError", "OSError(errno.ENOSPC, 'full')", "OSError(errno.EAGAIN, 'busy')"):
            self.assert_disturbed(f"import errno\nraise {error}")
            self.assert_disturbed(f"import errno\ndef f(x):\n    raise {error}", [("f", 1)])

    def test_a_runner_that_does_not_begin_or_end_is_no_verdict(self):
        with mock.patch.object(self.reviewer, "RUNNER", "raise SystemExit(1)"):
            self.assert_disturbed("")
        with mock.patch.object(self.reviewer, "PATIENCE_S", 0):
            self.assert_disturbed("")

    def test_what_the_code_does_itself_is_a_verdict(self):
        run = self.reviewer.run
        self.assertEqual(run("import os; os._exit(3)", []), "it ended with 3")
        self.assertEqual(run("import os; os._exit(0)", []), "it ended with 0")
        self.assertEqual(run("raise SystemExit(3)", []), "SystemExit: 3")
        self.assertIn("FileNotFoundError", run("open('/nowhere/at/all')", []))
        self.assertEqual(run("def f(x):\n    raise KeyError", [("f", 1)]), [["raises", "KeyError"]])
        with mock.patch.object(self.reviewer, "LIMIT_S", 1):
            self.assertEqual(run("while True: pass", []), "it computes for longer than 1 s")


if __name__ == "__main__":
    unittest.main()

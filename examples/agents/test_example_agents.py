"""The three example agents at work on one workspace: built, found wanting, repaired, approved, described."""

import os
import tempfile
import unittest
from pathlib import Path

from hapax_agent import snapshot_id
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

    def test_an_empty_workspace_is_a_failure_that_says_so(self):
        agents = self.project("project")
        codes = [
            self.turn(agents["reviewer"], "review", {"round": 1})["payload"]["code"],
            self.turn(agents["builder"], "change", {"round": 1, "findings": []})["payload"]["code"],
            self.turn(agents["spec_keeper"], "update_spec", {})["payload"]["code"],
        ]
        self.assertEqual(codes, ["nothing_to_review", "not_implemented", "no_code"])


if __name__ == "__main__":
    unittest.main()

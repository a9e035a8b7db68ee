"""docs/protocol.md is true: its agents run, its examples are messages, its known answers are right."""

import hashlib
import os
import re
import shlex
import signal
import tempfile
import unittest
from pathlib import Path

from hapax_agent import canonical_json, command_key, parse_json, snapshot_id
from harness import HERE, Folders, Process, again, command

PAGE = (HERE.parents[1] / "docs" / "protocol.md").read_text("utf-8")
SCHEMAS = HERE.parents[1] / "docs" / "schemas"
LONG_AGO = 1_000_000_000


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


class Examples(unittest.TestCase):
    def test_every_example_is_json_and_every_command_has_its_own_key(self):
        files = [parse_json(path.read_text("utf-8"))["examples"] for path in sorted(SCHEMAS.glob("*.json"))]
        shown = [parse_json(text) for text in blocks("json")]
        commands = [value for value in sum(files, shown) if value.get("kind") == "command"]
        self.assertGreaterEqual(len(commands), 4)
        for value in commands:
            work = (value["version"]["snapshot_id"], value["inputs"], value["expected_outputs"])
            self.assertEqual(value["idempotency_key"], command_key(value["action"], value["task_id"], *work))

    def test_the_known_keys_are_those_of_the_vectors(self):
        path = HERE.parents[1] / "crates" / "hapax-core" / "tests" / "vectors" / "command_key.json"
        vectors = {vector["key"]: vector for vector in parse_json(path.read_text("utf-8"))}
        consoles = blocks("console")
        self.assertEqual(len(consoles), 2)
        for console in consoles:
            printf, printed = console.splitlines()
            _, _, _, *fields, _, _ = shlex.split(printf)
            key = "ik:" + hashlib.sha256("\n".join(fields).encode()).hexdigest()
            self.assertEqual(printed, key[3:] + "  -")
            vector = vectors[key]
            self.assertEqual(fields[:3], [vector["action"], vector["task_id"], vector["snapshot_id"]])
            self.assertEqual(fields[3], canonical_json(parse_json(vector["inputs_json"])))

    def test_the_table_of_canonical_numbers_is_right(self):
        table = PAGE.split("| text | canonical |\n|---|---|\n")[1].split("\n\n")[0]
        for row in table.splitlines():
            texts, forms = (re.findall("`(.*?)`", cell) for cell in row.strip("|").split("|"))
            for text, form in zip(texts, forms * len(texts)):
                self.assertEqual(canonical_json(parse_json(text)), form)

    def test_the_known_snapshots_are_right(self):
        with tempfile.TemporaryDirectory() as folder:
            shown = [snapshot_id(folder)]
            (Path(folder) / "src").mkdir()
            (Path(folder) / "README.md").write_bytes(b"hello\n")
            (Path(folder) / "src" / "a.txt").write_bytes(b"")
            shown.append(snapshot_id(folder))
        for known in shown:
            self.assertIn(f"`{known}`", PAGE)


class Programs(unittest.TestCase):
    """Both agents of the page: the one without a kit, and the one with it."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)

    def each(self):
        for number, text in enumerate(blocks("python")):
            folders = Folders(self.root / str(number))
            program = folders.root / "agent.py"
            program.write_text(text, "utf-8")

            def start():
                agent = Process(folders, [program], PYTHONPATH=str(HERE), HAPAX_AGENT_TYPE="greeter")
                self.addCleanup(agent.kill)
                self.assertEqual((beat := agent.read())["seq"], 1, beat)
                return agent

            yield folders, start

    def test_there_are_two(self):
        self.assertEqual(len(list(self.each())), 2)

    def test_a_duplicate_gets_the_same_answer_after_a_restart_too(self):
        for folders, start in self.each():
            agent, message = start(), command("greet", {"name": "Ann"})
            answers = [agent.ask(message), agent.ask(again(message))]
            made = folders.staged(message) / "hello.txt"
            self.assertEqual(made.read_text(), "Hello, Ann!\n")
            os.utime(made, (LONG_AGO, LONG_AGO))
            agent.kill()
            agent = start()
            agent.ack(message)
            answers.append(agent.ask(again(message)))
            self.assertEqual(made.stat().st_mtime, LONG_AGO, "it isn't made anew")
            content = [(event["status"], event["payload"], event["artifacts"]) for event in answers]
            self.assertEqual(content, [content[0]] * 3)
            self.assertEqual(os.listdir(folders.workspace), [])

    def test_an_answer_that_is_to_be_forgotten_is_made_anew(self):
        for folders, start in self.each():
            agent, message = start(), command("greet", {"name": "Ann"})
            agent.ask(message)
            made = folders.staged(message) / "hello.txt"
            made.write_text("what the engine couldn't use")
            agent.ack(message, forget=True)
            self.assertEqual(agent.ask(again(message))["status"], "success")
            self.assertEqual(made.read_text(), "Hello, Ann!\n")

    def test_what_was_begun_is_done_again_from_an_empty_folder(self):
        for folders, start in self.each():
            message = command("greet", {"name": "Ann"})
            folders.staged(message).mkdir()
            (folders.staged(message) / "half").write_text("of it")
            self.assertEqual(start().ask(message)["status"], "success")
            self.assertEqual(os.listdir(folders.staged(message)), ["hello.txt"])

    def test_bad_lines_are_refused_and_the_next_is_taken(self):
        for _, start in self.each():
            agent, message = start(), command("greet", {"name": "Änn 😀", "n": 2**60})
            forged = canonical_json({**message, "inputs": {"name": "Bob"}}).encode()
            for line in (b"garbage", b"", b"\xff", b"[]", b"5", b"{}", b"x" * 300_000, b"x" * 262_144, forged):
                agent.send_bytes(line + b"\n")
                event = agent.read_event()
                self.assertEqual((event["event"], event["payload"]["code"]), ("error", "protocol"), line[:20])
                ours = message["correlation_id"] if line == forged else ""
                self.assertEqual(event["correlation_id"], ours)
            self.assertEqual(agent.ask(message)["status"], "success")

    def test_they_end_with_success(self):
        for _, start in self.each():
            agent = start()
            agent.close_input()
            self.assertEqual(agent.wait(), 0)
            agent = start()
            agent.ask(command("greet", {"name": "Ann"}))  # By now it has said what it does with signals.
            agent.signal(signal.SIGTERM)
            self.assertEqual(agent.wait(), 0)


if __name__ == "__main__":
    unittest.main()

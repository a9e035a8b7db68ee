"""docs/protocol.md is true: its agents run, its examples are messages, its known answers are right."""

import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from hapax_agent import canonical_json, command_key, parse_json, snapshot_id
from harness import HERE, PATIENCE_S, Folders, Process, again, command

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

    def test_what_has_two_meanings_or_none_is_refused(self):
        for folders, start in self.each():
            agent, message = start(), command("greet", {"name": "Ann"})
            line = canonical_json(message)
            odd = [line.replace('"name":', f'"name":"Bob",{second}:') for second in ('"name"', r'"n\u0061me"')]
            values = (r'"\ud83d"', r'{"\ud83d":1}', "NaN", "1e400", "[" * 127 + "]" * 127, "[" * 100_000)
            odd += [f'{{"unheard_of":{value},{line[1:]}' for value in values]
            odd += [canonical_json([[name, message[name]] for name in message]), f"\ufeff{line}"]
            for text in odd:
                with self.subTest(text[:60]):
                    agent.send_bytes(text.encode() + b"\n")
                    self.assertEqual(agent.read_event()["payload"]["code"], "protocol")
            self.assertFalse(folders.staged(message).exists())
            agent.send_bytes(f'{{"unheard_of":{"[" * 126 + "]" * 126},{line[1:]}\n'.encode())
            self.assertEqual(agent.answer_to(message)["status"], "success")

    def test_a_command_that_lacks_a_field_is_refused(self):
        for _, start in self.each():
            agent, message = start(), command("greet", {"name": "Ann"})
            required = [name for name in message if name not in ("kind", "priority")]
            wrong = [{"inputs": []}, {"to": {}}, {"to": 5}, {"version": {}}, {"retry": {}}, {"expected_outputs": [5]}]
            wrong += [{"expected_outputs": [{"path": "a"}]}, {"action": ""}, {"correlation_id": 7}, {"kind": []}]
            for changed in [{**message, **more} for more in wrong]:
                agent.send(changed)
                self.assertEqual(agent.read_event()["payload"]["code"], "protocol", changed)
            for name in required:
                agent.send({key: value for key, value in message.items() if key != name})
                event = agent.read_event()
                self.assertEqual(event["payload"]["code"], "protocol", name)
                self.assertEqual(event["correlation_id"], "" if name == "correlation_id" else message["correlation_id"])
            for more in ({}, {"idempotency_key": message["idempotency_key"], "forget": "yes"}):
                agent.send(ack := {"kind": "ack", **more})
                self.assertEqual(agent.read_event()["payload"]["code"], "protocol", ack)
            self.assertEqual(agent.ask(message)["status"], "success")

    def test_keys_sort_by_utf16_and_digits_stay(self):
        hard = {"name": "Ann", "\U0001f600": 1, "\ufb33": 2, "\uffff": [2**64 + 1, {"\u007f\u2028": "\u0001/<"}], "": 0}
        for _, start in self.each():
            event = start().ask(command("greet", hard, task_id="漢 😀"))
            self.assertEqual((event["status"], event["task_id"]), ("success", "漢 😀"), event)

    def test_what_is_not_the_senders_mistake_is_not_called_one(self):
        for number, (folders, start) in enumerate(self.each()):
            agent, message = start(), command("greet", {"nom": "Ann"})
            failed = agent.ask(message)["payload"]
            expected = [("inputs", False), ("exception", True)][number]
            self.assertEqual((failed["code"], failed["retryable"]), expected)
            self.assertEqual(agent.ask(again(message))["payload"], failed)
            agent.ack(message)
            self.assertEqual(agent.ask(command("fly"))["payload"]["code"], "unknown_action")
            half = folders.staged(message) / "half"
            half.mkdir(parents=True)
            agent.ask(again(message))
            self.assertFalse(half.exists(), "a failure that the engine has is tried again")

    def test_the_answer_says_what_was_worked_on(self):
        for _, start in self.each():
            agent, message = start(), command("greet", {"name": "Ann"})
            for asked in (message, again(message)):
                self.assertEqual(agent.ask(asked)["observed_version"], message["version"])

    def test_half_a_line_at_the_end_is_never_executed(self):
        for folders, start in self.each():
            agent, message = start(), command("greet", {"name": "Ann"})
            agent.send_bytes(canonical_json(message).encode())
            agent.close_input()
            self.assertEqual(agent.read_event()["payload"]["code"], "protocol")
            self.assertEqual(agent.wait(), 0)
            self.assertFalse(folders.staged(message).exists())

    def test_there_is_an_answer_even_if_an_id_fills_the_line_and_a_pipe_stands_in_the_way(self):
        for folders, start in self.each():
            agent = start()
            for name in ("task_id", "snapshot"):
                message = command("greet", {"name": "Ann"}, **{name: "t" * 261_600})
                event = agent.ask(message)
                self.assertEqual(event["payload"]["code"], "too_large", event["payload"])
                self.assertEqual(event["task_id"], "" if name == "task_id" else message["task_id"])
            message = command("greet", {"name": "Ann"})
            os.mkfifo(folders.staged(message))
            self.assertEqual(agent.ask(message)["status"], "success")

    def test_when_the_engine_is_gone_they_end_with_success(self):
        for folders, start in self.each():
            message, environment = command("greet", {"name": "Ann"}), {"PYTHONPATH": str(HERE)}
            program = [sys.executable, str(folders.root / "agent.py")]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
            with subprocess.Popen(program, env=folders.environment(**environment), **pipes) as agent:
                self.assertIn(b"heartbeat", agent.stdout.readline())
                agent.stdout.close()
                agent.stdin.write(canonical_json(message).encode() + b"\n")
                self.assertEqual(agent.wait(PATIENCE_S), 0)
            made = folders.staged(message) / "hello.txt"
            os.utime(made, (LONG_AGO, LONG_AGO))
            self.assertEqual(start().ask(again(message))["status"], "success")
            self.assertEqual(made.stat().st_mtime, LONG_AGO, "the answer was kept")

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

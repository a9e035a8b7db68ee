"""The promises of the kit, tried on real processes over pipes: once, whatever is sent and whatever dies.

    python3 -m unittest discover examples/agents

No test waits for time to pass. With HAPAX_CANARY set the probe is wrong on purpose; the last class demands that tests
notice it.
"""

import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import unittest
from pathlib import Path
from unittest import mock

import hapax_agent
from hapax_agent import CanonicalError, Lines, ProtocolError, SnapshotError, canonical_json, command_key, parse_json
from hapax_agent import snapshot_id
from harness import HERE, PATIENCE_S, Folders, Process, again, command

VECTORS = HERE.parents[1] / "crates" / "hapax-core" / "tests" / "vectors"
PROBE = HERE / "probe_agent.py"


def vectors(name):
    return json.loads((VECTORS / name).read_text("utf-8"))


class Canonical(unittest.TestCase):
    def test_every_published_text_has_its_canonical_form(self):
        cases = vectors("canonical_json.json")
        self.assertGreater(len(cases), 20)
        for case in cases:
            self.assertEqual(canonical_json(parse_json(case["json"])), case["canonical"])

    def test_every_published_command_has_its_key(self):
        cases = vectors("command_key.json")
        self.assertGreater(len(cases), 15)
        for case in cases:
            inputs, outputs = parse_json(case["inputs_json"]), parse_json(case["expected_outputs_json"])
            key = command_key(case["action"], case["task_id"], case["snapshot_id"], inputs, outputs)
            self.assertEqual(key, case["key"])

    def test_numbers_take_their_shortest_es6_form(self):
        for text, expected in [
            ("1.0", "1"), ("1E2", "100"), ("1e20", "100000000000000000000"), ("1e21", "1e+21"), ("1e-6", "0.000001"),
            ("1e-7", "1e-7"), ("-0", "0"), ("-0.0", "0"), ("1e-400", "0"), ("-1.50", "-1.5"), ("5e-324", "5e-324"),
            ("1.25e-9", "1.25e-9"), ("123456.789", "123456.789"), ("9007199254740993.0", "9007199254740992"),
            ("-123456789012345678901234567890", "-123456789012345678901234567890"), ("0.1", "0.1"),
        ]:
            self.assertEqual(canonical_json(parse_json(text)), expected, text)

    def test_an_integer_keeps_all_its_digits_however_many(self):
        for digits in ("7" * 599, "7" * 600, "7" * 601, "1" + "0" * 1200, "9" * 20_000):
            for text in (digits, "-" + digits):
                self.assertEqual(canonical_json(parse_json(text)), text)

    def test_what_has_two_meanings_or_none_is_refused(self):
        for text in [
            '{"a":1,"a":2}', r'{"a":1,"\u0061":2}', r'"\ud83d"', r'["\ude00"]', r'{"\ud83d":1}', "NaN", "[Infinity]",
            "-Infinity", "1e400", "", "01", "+1", "1 2", "[1,]", "{a:1}", "'a'", '"a\nb"', r'"\x"',
            r'"\u12g4"', "\ufeff1",
        ]:
            with self.assertRaises(CanonicalError, msg=text):
                parse_json(text)
        for value in (float("nan"), float("inf"), "\ud800", {1: 2}, {"a": object()}, b"x"):
            with self.assertRaises(CanonicalError, msg=repr(value)):
                canonical_json(value)

    def test_nesting_ends_at_the_limit(self):
        nested = lambda depth: "[" * depth + "]" * depth
        self.assertEqual(canonical_json(parse_json(nested(127))), nested(127))
        for depth in (128, 100_000):
            with self.assertRaises(CanonicalError):
                parse_json(nested(depth))

    def test_a_newline_in_a_field_is_refused(self):
        for fields in (("a\n", "t", "s"), ("a", "\nt", "s"), ("a", "t", "s\n")):
            with self.assertRaises(CanonicalError):
                command_key(*fields, {}, [])


class Snapshots(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def write(self, path, content=b"x"):
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def test_the_id_is_the_hash_that_the_page_describes(self):
        lp = lambda text: struct.pack(">I", len(text)) + text
        row = lambda path, content: lp(path) + hashlib.sha256(content).digest() + struct.pack(">Q", len(content))
        empty = "snap-" + hashlib.sha256(b"hapax.snapshot.v1").hexdigest()[:12]
        self.assertEqual(snapshot_id(self.folder), empty)
        self.write("a/b", b"1")
        self.write("a.b", b"22")  # Sorts before a/b by its bytes, though the folder is listed first.
        self.write("é", b"")
        os.symlink("a/b", self.folder / "link")
        link = lp(b"link") + hashlib.sha256(b"symlink:a/b").digest() + struct.pack(">Q", 3)
        rows = row(b"a.b", b"22") + row(b"a/b", b"1") + link + row("é".encode(), b"")
        expected = hashlib.sha256(b"hapax.snapshot.v1" + rows).hexdigest()[:12]
        self.assertEqual(snapshot_id(self.folder), f"snap-{expected}")

    def test_only_content_counts(self):
        self.write("src/a.py", b"one")
        before = snapshot_id(self.folder)
        os.utime(self.folder / "src/a.py", (1, 1))
        os.chmod(self.folder / "src/a.py", 0o700)
        (self.folder / "empty").mkdir()
        self.write(".git/HEAD", b"ref")
        self.write(".hapax/staging/x", b"y")
        self.assertEqual(snapshot_id(self.folder), before)
        self.write("src/.git/HEAD", b"deeper ones count")
        self.assertNotEqual(snapshot_id(self.folder), before)
        self.assertEqual(snapshot_id(self.folder, ignore=("src", ".git", ".hapax")), snapshot_id(self.folder / "empty"))

    def test_what_is_left_out_may_be_a_file_or_a_link_too(self):
        empty = snapshot_id(self.folder)
        self.write(".git", b"gitdir: /somewhere/else")  # As in a worktree of git.
        os.symlink("/somewhere/else", self.folder / ".hapax")
        self.assertEqual(snapshot_id(self.folder), empty)

    def test_a_link_that_leads_out_is_refused(self):
        (self.folder / "a" / "b").mkdir(parents=True)
        os.symlink("../..", self.folder / "a" / "b" / "up")  # Inside, but a way out for the last one.
        inside = snapshot_id(self.folder)
        for target in ("..", "../x", "/etc", str(self.folder), "a/../../x", "a/b/up/../x"):
            os.symlink(target, self.folder / "link")
            with self.assertRaises(SnapshotError, msg=target):
                snapshot_id(self.folder)
            (self.folder / "link").unlink()
        self.assertEqual(snapshot_id(self.folder), inside)

    def test_a_path_that_is_not_utf8_is_refused(self):
        os.close(os.open(os.fsencode(self.folder) + b"/\xff", os.O_CREAT))
        with self.assertRaises(SnapshotError):
            snapshot_id(self.folder)

    def test_a_link_whose_target_is_not_utf8_is_refused(self):
        os.symlink(b"\xff", os.fsencode(self.folder) + b"/link")
        with self.assertRaises(SnapshotError):
            snapshot_id(self.folder)


class Files(unittest.TestCase):
    def test_content_is_durable_before_its_name_and_the_name_before_the_next_thing(self):
        calls = []

        def note(name, call):
            def noted(*arguments):
                is_folder = name == "fsync" and stat.S_ISDIR(os.fstat(arguments[0]).st_mode)
                calls.append("fsync of the folder" if is_folder else name)
                return call(*arguments)

            return mock.patch.object(os, name, noted)

        with tempfile.TemporaryDirectory() as folder, note("fsync", os.fsync), note("replace", os.replace):
            hapax_agent.write_atomic(Path(folder) / "entry", b"whole")
            self.assertEqual(os.listdir(folder), ["entry"])
        self.assertEqual(calls, ["fsync", "replace", "fsync of the folder"])

    def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "entry"
            hapax_agent.write_atomic(path, b"old")
            with mock.patch.object(os, "fsync", side_effect=OSError("disk full")), self.assertRaises(OSError):
                hapax_agent.write_atomic(path, b"new")
            self.assertEqual((path.read_bytes(), os.listdir(folder)), (b"old", ["entry"]))


class Reading(unittest.TestCase):
    def lines_of(self, data, limit, chunk):
        """The lines of data that arrives in pieces, and the most that was held or asked for at once."""
        at, most = 0, 0

        def read(size):
            nonlocal at, most
            most = max(most, size)
            piece = data[at : at + min(size, chunk)]
            at += len(piece)
            return piece

        shown = lambda line: "refused" if isinstance(line, ProtocolError) else line
        return [shown(line) for line in Lines(read, limit)], most

    def test_lines_are_the_same_however_they_arrive(self):
        data = b"one\n" + b"x" * 9 + b"\n" + b"x" * 10 + b"\n\ntwo\n" + b"y" * 1000 + b"\nthree\nhalf"
        expected = [b"one", b"x" * 9, "refused", b"", b"two", "refused", b"three", "refused"]
        for chunk in (1, 2, 3, 7, 10, 5000):
            self.assertEqual(self.lines_of(data, 10, chunk), (expected, 10), chunk)

    def test_the_end_of_a_line_that_is_too_long_is_no_line(self):
        self.assertEqual(self.lines_of(b"z" * 25, 10, 4)[0], ["refused"])


class AgentTest(unittest.TestCase):
    """An agent's folders, and processes that end with the test."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folders, self.gates = Folders(Path(temporary.name) / "agent"), {}

    def start(self, *options, **environment):
        process = Process(self.folders, [PROBE, *options], **environment)
        self.addCleanup(process.kill)
        return process

    def ready(self, *options, **environment):
        process = self.start(*options, **environment)
        self.assertEqual(process.read()["kind"], "heartbeat")
        return process

    def gate(self):
        """A pipe at which a `hold` command waits for a byte. It is open here, so that no side waits to open it."""
        path = str(self.folders.root / f"gate-{len(self.gates)}")
        os.mkfifo(path)
        self.gates[path] = os.open(path, os.O_RDWR)
        self.addCleanup(os.close, self.gates[path])
        return path

    def hold(self, agent, **more):
        message = agent.send(command("hold", {"gate": self.gate(), **more}))
        self.assertEqual(agent.read_event()["event"], "progress")
        return message

    def release(self, message):
        os.write(self.gates[message["inputs"]["gate"]], b"x")

    def assert_same_answer(self, first, second):
        own = ("message_id", "correlation_id", "occurred_at")
        content = lambda event: {name: value for name, value in event.items() if name not in own}
        self.assertEqual(content(first), content(second))
        self.assertNotEqual(first["message_id"], second["message_id"])

    def assert_failed(self, event, code, retryable):
        self.assertEqual((event["event"], event["status"], event["artifacts"]), ("error", "failed", []))
        self.assertEqual((event["payload"]["code"], event["payload"]["retryable"]), (code, retryable), event)


class Duplicates(AgentTest):
    def test_a_duplicate_is_answered_from_the_cache(self):
        agent, message = self.ready(), command("work", {"what": "a"})
        first = agent.ask(message)
        self.assertEqual(first["status"], "success")
        self.assert_same_answer(first, agent.ask(again(message)))
        self.assertEqual(self.folders.executions(message), 1)

    def test_a_duplicate_is_answered_after_a_restart_too(self):
        message = command("work", {"what": "a"})
        agent = self.ready()
        first = agent.ask(message)
        agent.kill()
        self.assert_same_answer(first, self.ready().ask(again(message)))
        self.assertEqual(self.folders.executions(message), 1)

    def test_a_duplicate_of_running_work_waits_for_it(self):
        agent = self.ready()
        first = self.hold(agent)
        second = agent.send(again(first))
        agent.ask(command("unknown"))  # Lines are read in order: the duplicate was seen before this is answered.
        self.release(first)
        answers = {event["correlation_id"]: event for event in (agent.read_event(), agent.read_event())}
        self.assert_same_answer(answers[first["correlation_id"]], answers[second["correlation_id"]])
        self.assertEqual(self.folders.executions(first), 1)

    def test_other_content_is_other_work(self):
        agent = self.ready()
        for what in ("a", "b", 9007199254740992, 9007199254740993):
            self.assertEqual(agent.ask(command("work", {"what": what}))["payload"]["count"], 1)

    def test_a_key_that_is_not_of_this_content_is_refused(self):
        agent, message = self.ready(), command("work", {"what": "a"})
        forged = {**message, "inputs": {"what": "b"}}
        self.assert_failed(agent.ask(forged), "protocol", False)
        self.assertEqual(self.folders.executions(message), 0)
        self.assertEqual(agent.ask(message)["status"], "success")

    def test_duplicates_and_heartbeats_are_served_while_work_is_under_way(self):
        agent, done = self.ready(HAPAX_HEARTBEAT_MS="1"), command("work", {"what": "a"})
        agent.ask(done)
        held = self.hold(agent)
        agent.ask(again(done))
        while not (agent.heartbeats and agent.heartbeats[-1]["status"] == "busy"):
            agent.ask(again(done))
        self.assertEqual(agent.heartbeats[-1]["task_id"], held["task_id"])
        self.release(held)
        self.assertEqual(agent.answer_to(held)["status"], "success")
        numbers = [beat["seq"] for beat in agent.heartbeats]
        self.assertEqual(numbers, list(range(2, 2 + len(numbers))))

    def test_as_many_commands_run_at_once_as_configured(self):
        agent = self.ready("concurrency=2")
        first, second = self.hold(agent, number=1), self.hold(agent, number=2)
        third = agent.send(command("work", {"what": "waits"}))
        agent.ask(command("unknown"))
        self.assertEqual(self.folders.executions(third), 0)
        self.release(second)
        self.assertEqual(agent.answer_to(second)["status"], "success")
        self.assertEqual(agent.answer_to(third)["status"], "success")
        self.release(first)
        self.assertEqual(agent.answer_to(first)["status"], "success")

    def test_a_full_queue_refuses_and_forgets(self):
        agent = self.ready("queue_bound=1")
        held, queued = self.hold(agent), agent.send(command("work", {"what": "queued"}))
        message = command("work", {"what": "a"})
        self.assert_failed(agent.ask(message), "busy", True)
        self.release(held)
        agent.answer_to(held)
        agent.answer_to(queued)
        self.assertEqual(agent.ask(again(message))["status"], "success")


class Crashes(AgentTest):
    POINTS = {
        "before started": 1, "after started": 1, "in work": 2, "before done": 2, "after done": 1, "after answer": 1,
    }

    def die_and_resend(self, point):
        """Work under an agent that dies at this point, and again under the next: what both said."""
        message = command("work", {"what": point})
        doomed = self.ready(HAPAX_DIE_AT=point)
        doomed.send(message)
        self.assertEqual(doomed.wait(), -signal.SIGKILL)
        said, survivor = doomed.read(), self.ready()
        answer = survivor.ask(again(message))
        survivor.kill()
        return message, said, answer

    def test_wherever_it_dies_the_answer_comes_and_no_finished_work_is_repeated(self):
        for point, executions in self.POINTS.items():
            with self.subTest(point):
                message, said, answer = self.die_and_resend(point)
                self.assertEqual(answer["status"], "success")
                self.assertEqual(answer["payload"]["files"], ["out"], "no file of the first attempt is left")
                self.assertEqual(self.folders.executions(message), executions)
                self.assertEqual(said is not None, point == "after answer")

    def test_an_answer_that_was_read_is_never_worked_for_again(self):
        message, said, answer = self.die_and_resend("after answer")
        self.assertEqual(self.folders.executions(message), 1)
        self.assert_same_answer(said, answer)

    def test_work_that_was_cut_off_is_done_once_more_from_an_empty_folder(self):
        agent = self.ready()
        message = self.hold(agent)
        self.assertEqual(json.loads(self.folders.entry(message).read_text())["state"], "started")
        agent.kill()
        staged = self.folders.staged(message)
        self.assertEqual(os.listdir(staged), ["half-done.txt"])
        (staged / "deep").mkdir()
        (staged / "deep" / "garbage").write_text("left over")
        agent = self.ready()
        message = agent.send(again(message))
        self.assertEqual(agent.read_event()["event"], "progress")
        self.assertEqual(os.listdir(staged), ["half-done.txt"], "only what this attempt wrote")
        self.release(message)
        self.assertEqual(agent.answer_to(message)["payload"], {"count": 2, "was_cut_off": True})
        self.assertEqual(agent.ask(again(message))["payload"], {"count": 2, "was_cut_off": True})

    def test_a_full_disk_is_a_failure_that_may_be_retried_not_an_answer_without_record(self):
        agent, message = self.ready(), command("fill_disk")
        self.assert_failed(agent.ask(message), "cache", True)
        self.assertEqual(self.folders.executions(message), 1)
        self.assertEqual(json.loads(self.folders.entry(message).read_text())["state"], "started")
        self.assertFalse(self.folders.staged(message).exists(), "files without an answer only take room")
        self.assert_failed(agent.ask(again(message)), "cache", True)
        self.assertEqual(self.folders.executions(message), 1, "without a record of the start nothing is begun")
        agent.kill()
        agent = self.ready()
        self.assertEqual(agent.ask(command("work", {"what": "a"}))["status"], "success")
        self.assertEqual(agent.ask(again(message))["payload"], {"was_cut_off": True}, "what it did has happened")
        self.assertEqual(self.folders.executions(message), 2)

    def test_a_corrupt_entry_counts_as_absent_and_is_kept_for_a_person(self):
        for content in (b"", b'{"v":1,"key"', b"\xff\xfe", b"[]", b'{"v":2}', None):
            with self.subTest(content):
                agent, message = self.ready(), command("work", {"what": repr(content)})
                agent.ask(message)
                agent.kill()
                entry = self.folders.entry(message)
                other = {"v": 1, "key": "ik:" + "0" * 64, "state": "done", "acked": False, "event": {}}
                content = json.dumps(other).encode() if content is None else content
                entry.write_bytes(content)
                agent = self.ready_after_warning()
                self.assertEqual(agent.ask(again(message))["payload"]["count"], 2)
                self.assertEqual(entry.with_suffix(".json.corrupt").read_bytes(), content)
                self.assertEqual(agent.ask(again(message))["payload"]["count"], 2)
                agent.kill()

    def ready_after_warning(self):
        agent = self.start()
        warning, beat = agent.read(), agent.read()
        self.assertEqual((warning["kind"], warning["level"], beat["kind"]), ("log", "warn", "heartbeat"))
        return agent

    def test_an_entry_that_rots_while_the_agent_lives_is_noticed_too(self):
        agent, message = self.ready(), command("work", {"what": "a"})
        agent.ask(message)
        self.folders.entry(message).write_bytes(b"rot")
        self.assertEqual(agent.ask(again(message))["payload"]["count"], 2)
        self.assertEqual([log["level"] for log in agent.logs], ["warn"])

    def test_temporary_files_of_a_crash_are_swept(self):
        (self.folders.state / ".0123.tmp").write_bytes(b"half")
        os.mkfifo(self.folders.state / "pipe.tmp")
        os.symlink("nowhere", self.folders.state / "link.tmp")
        self.ready()
        self.assertEqual(os.listdir(self.folders.state), ["lock"])

    def test_a_folder_that_no_crash_left_is_moved_aside(self):
        (self.folders.state / "x.tmp" / "deeper").mkdir(parents=True)
        self.ready_after_warning()
        self.assertEqual(sorted(os.listdir(self.folders.state)), ["lock", "x.tmp.corrupt"])
        self.assertEqual(os.listdir(self.folders.state / "x.tmp.corrupt"), ["deeper"])

    def answered(self, count):
        """Commands that an earlier process has answered, with their entries."""
        agent, messages = self.ready(), [command("work", {"what": number}) for number in range(count)]
        for message in messages:
            agent.ask(message)
        agent.kill()
        return [(message, self.folders.entry(message)) for message in messages]

    def assert_all_done_again(self, answered):
        agent = self.start()
        warnings = [agent.read() for _ in answered]
        self.assertEqual({warning.get("level") for warning in warnings}, {"warn"}, warnings)
        self.assertEqual(agent.read()["kind"], "heartbeat")
        for message, entry in answered:
            answer = agent.ask(again(message))
            self.assertEqual((answer["status"], answer["payload"].get("count")), ("success", 2), answer)
            self.assertTrue(os.path.lexists(f"{entry}.corrupt"))
            self.assert_same_answer(answer, agent.ask(again(message)))

    def test_whatever_stands_in_the_place_of_an_entry_is_moved_aside(self):
        def folder(entry):
            (entry / "deeper").mkdir(parents=True)
            Path(f"{entry}.corrupt", "from an earlier time").mkdir(parents=True)

        places = [
            folder, Path.mkdir, os.mkfifo, lambda entry: entry.symlink_to("nowhere"),
            lambda entry: entry.symlink_to(self.folders.state / "lock"), lambda entry: entry.symlink_to(entry),
        ]
        answered = self.answered(len(places))
        for place, (_, entry) in zip(places, answered):
            entry.unlink()
            place(entry)
        self.assert_all_done_again(answered)

    def test_an_entry_without_all_that_an_answer_needs_is_none(self):
        made = {"path": "a", "sha256": "0" * 64, "size": 1}
        reason = {"code": "x", "message": "", "retryable": False}
        failed = {"event": "error", "status": "failed", "payload": reason, "artifacts": []}
        artifacts = [5, [5], {}, None, [{"path": "a"}], [{**made, "path": "../../a"}], [{**made, "path": 5}]]
        artifacts += [[{**made, "sha256": "0" * 63}], [{**made, "size": -1}], [{**made, "size": "1"}]]
        changes = [{"artifacts": value} for value in artifacts]
        changes += [{"payload": value} for value in (5, [], None)] + [{"observed_version": {}}, {"from": {}}]
        changes += [{"event": ""}, {"event": "a b"}, {"event": "error"}, {"kind": "log"}, {"message_id": 5}]
        changes += [{"status": value} for value in (5, "A", "clarification", "failed")] + [{"task_id": None}]
        changes += [{**failed, "payload": {**reason, name: None}} for name in reason]
        needed = ("kind", "message_id", "correlation_id", "task_id", "from", "event", "status", "payload", "artifacts")
        answered = self.answered(len(changes) + len(needed) + 2)
        for number, (_, path) in enumerate(answered):
            entry = json.loads(path.read_text())
            if number < len(changes):
                entry["event"].update(changes[number])
            elif number < len(changes) + len(needed):
                del entry["event"][needed[number - len(changes)]]
            elif number == len(changes) + len(needed):
                entry["event"] = {}
            else:
                entry["state"] = "started"
            entry["acked"] = number % 2 == 0 or entry["state"] == "started"
            path.write_text(json.dumps(entry))
        self.assert_all_done_again(answered)

    def test_a_folder_that_gets_into_the_place_of_an_entry_is_moved_aside_while_the_agent_lives(self):
        agent, known, unknown = self.ready(), command("work", {"what": "a"}), command("work", {"what": "b"})
        agent.ask(known)
        self.folders.entry(known).unlink()
        for message, count in ((known, 2), (unknown, 1)):
            (self.folders.entry(message) / "deeper").mkdir(parents=True)
            self.assertEqual(agent.ask(again(message))["payload"].get("count"), count)
            self.assertEqual(agent.ask(again(message))["payload"].get("count"), count)
        self.assertEqual([log["level"] for log in agent.logs], ["warn", "warn"])

    def test_whatever_stands_in_the_place_of_the_staging_folder_goes(self):
        agent, outside = self.ready(), self.folders.root / "outside"
        (outside / "kept").mkdir(parents=True)
        for place in (os.mkfifo, Path.touch, lambda path: path.symlink_to(outside), lambda path: path.symlink_to("no")):
            message = command("work", {"what": len(os.listdir(self.folders.staging))})
            place(self.folders.staged(message))
            self.assertEqual(agent.ask(message)["payload"].get("files"), ["out"])
        self.assertEqual(os.listdir(outside), ["kept"])


class Leaving(AgentTest):
    def test_at_the_end_of_the_input_running_work_is_finished_and_answered(self):
        agent = self.ready()
        held, queued = self.hold(agent), agent.send(command("work", {"what": "queued"}))
        agent.close_input()
        while agent.read()["kind"] != "heartbeat":
            pass
        self.release(held)
        self.assertEqual(agent.answer_to(held)["status"], "success")
        self.assertIsNone(agent.read())
        self.assertEqual(agent.wait(), 0)
        self.assertEqual(self.folders.executions(queued), 0, "nothing new is begun")

    def test_work_that_outlasts_the_grace_is_cut_off_and_done_again(self):
        agent = self.ready("grace_s=0")
        held = self.hold(agent)
        agent.close_input()
        self.assertEqual(agent.wait(), 0)
        agent = self.ready()
        held = agent.send(again(held))
        self.release(held)
        self.assertEqual(agent.answer_to(held)["payload"], {"count": 2, "was_cut_off": True})

    def test_a_signal_ends_it_at_once_with_success(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            for is_busy in (False, True):
                with self.subTest((number, is_busy)):
                    agent = self.ready()
                    if is_busy:
                        self.hold(agent, number=int(number))
                    agent.signal(number)
                    self.assertEqual(agent.read()["status"], "stopping")
                    self.assertIsNone(agent.read())
                    self.assertEqual(agent.wait(), 0)

    def popen(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        process = subprocess.Popen([sys.executable, str(PROBE)], env=self.folders.environment(), **pipes)
        self.addCleanup(process.wait, PATIENCE_S)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.stdout.close)
        return process

    def test_a_signal_ends_it_even_when_nobody_reads(self):
        process = self.popen()
        process.stdin.write(canonical_json(command("chat", {"lines": 1_000_000})).encode() + b"\n")
        waiting = bytearray(4)
        while int.from_bytes(waiting, sys.byteorder) < 60_000:  # The pipe is full, so the writer hangs in it.
            fcntl.ioctl(process.stdout, termios.FIONREAD, waiting)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE_S), 0)

    def test_when_the_engine_is_gone_the_answer_is_kept_and_the_agent_ends(self):
        process, message = self.popen(), command("hold", {"gate": self.gate()})
        process.stdin.write(canonical_json(message).encode() + b"\n")
        seen = b""
        while b'"progress"' not in seen:
            seen += process.stdout.read(1)
        process.stdout.close()
        self.release(message)
        self.assertEqual(process.wait(PATIENCE_S), 0, "though its input is still open")
        self.assertEqual(self.ready().ask(again(message))["payload"], {"count": 1, "was_cut_off": False})

    def test_a_second_process_is_kept_out(self):
        first, message = self.ready(), command("work", {"what": "a"})
        second = self.start("lock_timeout_s=0")
        self.assertEqual(second.read()["level"], "error")
        self.assertEqual(second.wait(), 1)
        self.assertIn(b"lock is held", second.stderr)
        self.assertEqual(first.ask(message)["status"], "success")

    def test_a_second_process_waits_for_the_first_to_die(self):
        first = self.ready()
        second = self.start("lock_timeout_s=60")
        first.kill()
        self.assertEqual(second.read()["status"], "idle")


class BadLines(AgentTest):
    def assert_refused(self, agent, correlation="", task=None):
        event = agent.read_event()
        self.assert_failed(event, "protocol", False)
        self.assertEqual(event["correlation_id"], correlation)
        self.assertIn(event["task_id"], ("", "T-0001") if task is None else (task,))
        return event["payload"]["message"]

    def test_a_line_that_cannot_be_read_is_answered_and_the_next_is_read(self):
        agent = self.ready()
        good = canonical_json(command("work")).encode()
        for line in [
            b"garbage", b"", b"\xff\xfe", b'"text"', b"[]", b"{", b"{}", b'{"kind":"other"}', b"[" * 100_000,
            b'{"kind":"ack"}', b'{"kind":"ack","idempotency_key":"../../etc"}', b'{"a":1,"a":2}',
            b'{"kind":"ack","idempotency_key":"ik:%s","forget":"yes"}' % (b"0" * 64),
            b'{"correlation_id":"corr-%s"}' % (b"x" * 251), b'{"correlation_id":"corr-\xff"', b'{"correlation_id":7}',
        ]:
            with self.subTest(line[:40]):
                agent.send_bytes(line + b"\n")
                self.assert_refused(agent)
        self.assertEqual(agent.ask(command("work", {"what": "a"}))["status"], "success")

    def test_a_broken_line_is_refused_under_the_ids_that_can_be_made_out(self):
        agent, message = self.ready(), command("work")
        good = canonical_json(message).encode()
        spaced = json.dumps(message).encode()
        for line in (good[:-1], spaced[:-1], good + good, good.replace(b"work", b"w\xff"), good[:-1] + b"]"):
            with self.subTest(line[-40:]):
                agent.send_bytes(line + b"\n")
                self.assert_refused(agent, message["correlation_id"], message["task_id"])
        for line in (b'{"correlation_id":"corr-1","task_id":"T-' + b"x" * 300_000, b'{"correlation_id":"corr-1'):
            agent.send_bytes(line + b"\n")
            self.assert_refused(agent, "corr-1" if b"," in line else "")
        self.assertEqual(agent.ask(message)["status"], "success")

    def padded(self, size):
        """A command whose line has exactly this many bytes, its newline included."""
        room = size - len(canonical_json(command("echo", {"pad": ""}))) - 1
        message = command("echo", {"pad": "x" * room})
        self.assertEqual(len(canonical_json(message)) + 1, size)
        return message

    def test_a_line_of_the_limit_is_taken_and_one_byte_more_is_not(self):
        agent = self.ready()
        answer = agent.ask(self.padded(262_144))
        self.assert_failed(answer, "too_large", False)  # It was read: its echo doesn't fit into an answer.
        longer = agent.send(self.padded(262_145))
        self.assertIn("262144", self.assert_refused(agent, longer["correlation_id"]))
        agent.send_bytes(b"x" * 5_000_000 + b"\n")
        self.assert_refused(agent)
        self.assertEqual(agent.ask(command("work"))["status"], "success")

    def test_there_is_an_answer_even_if_the_ids_of_the_command_fill_its_line(self):
        agent = self.ready(HAPAX_HEARTBEAT_MS="1")
        for name, action in [(name, action) for name in ("task_id", "snapshot") for action in ("work", "hold", "fly")]:
            with self.subTest((name, action)):
                room = 262_144 - len(canonical_json(command(action, {"gate": ""}, **{name: "t"}))) - 1
                message = command(action, {"gate": ""}, **{name: "t" * (room + 1)})
                self.assertEqual(len(canonical_json(message)) + 1, 262_144)
                code = {"fly": "unknown_action", "hold": "exception"}.get(action, "too_large")
                answer = agent.ask(message)
                self.assert_failed(answer, code, code == "exception")
                self.assertEqual(answer["task_id"], "" if name == "task_id" else "T-0001")
                if code == "too_large":
                    self.assert_same_answer(answer, agent.ask({**again(message), "correlation_id": "corr-"}))
        self.assertEqual(agent.ask(command("work"))["status"], "success")
        seen = len(agent.heartbeats)
        while len(agent.heartbeats) == seen:
            agent.ask(command("fly"))  # They go on.

    def test_a_heartbeat_stays_short_whatever_it_is_about(self):
        for size, shown in ((255, True), (256, False)):
            agent, gate = self.ready(HAPAX_HEARTBEAT_MS="1"), self.gate()
            message = agent.send(command("hold", {"gate": gate}, task_id="\u0001" * size))
            self.assertEqual(agent.read_event()["event"], "progress")
            while not (agent.heartbeats and agent.heartbeats[-1]["status"] == "busy"):
                agent.ask(command("fly"))
            beat = agent.heartbeats[-1]
            self.assertEqual(beat.get("task_id"), message["task_id"] if shown else None)
            self.assertLess(len(canonical_json(beat)), select.PIPE_BUF, "it fits into a pipe that takes anything")
            self.release(message)
            self.assertEqual(agent.answer_to(message)["task_id"], message["task_id"])
            agent.kill()

    def test_half_a_line_at_the_end_is_never_executed(self):
        agent, message = self.ready(), command("work", {"what": "a"})
        agent.send_bytes(canonical_json(message).encode())
        agent.close_input()
        self.assert_refused(agent, message["correlation_id"])
        self.assertEqual(agent.wait(), 0)
        self.assertEqual(self.folders.executions(message), 0)

    def test_a_command_that_lacks_a_required_field_is_refused_under_its_correlation_id(self):
        agent, message = self.ready(), command("work", {"what": "a"})
        required = [name for name in message if name not in ("kind", "priority", "correlation_id")]
        for name in required:
            with self.subTest(name):
                agent.send({key: value for key, value in message.items() if key != name})
                self.assertIn(name, self.assert_refused(agent, message["correlation_id"]))
        for wrong in [
            {"inputs": []}, {"expected_outputs": [{"path": "a"}]}, {"retry": {"attempt": 0, "max_attempts": 1}},
            {"deadline": "tomorrow"}, {"priority": "high"}, {"to": {}}, {"version": {}}, {"task_id": "T\n1"},
            {"to": {**message["to"], "agent_id": 7}}, {"version": {**message["version"], "specs_hash": 7}},
            {"expected_outputs": [{"path": "a", "required": True, "description": 7}]},
            {"retry": {"attempt": 1.5, "max_attempts": 2}},
        ]:
            with self.subTest(wrong):
                agent.send({**message, **wrong})
                self.assert_refused(agent, message["correlation_id"])
        self.assertEqual(self.folders.executions(message), 0)

    def test_unknown_fields_are_ignored_and_defaults_are_filled_in(self):
        agent = self.ready()
        message = {**command("echo", {"n": 10**30}), "later": {"x": 1}}
        del message["priority"]
        message["version"]["later"] = True
        payload = agent.ask(message)["payload"]
        self.assertEqual(payload, {"inputs": {"n": 10**30}, "attempt": 1, "priority": 5, "year": 2999})

    def test_an_integer_may_be_written_as_a_float(self):
        agent, message = self.ready(), command("echo")
        text = canonical_json(message).replace('"attempt":1,', '"attempt":1.0,')
        agent.send_bytes(text.replace('"priority":5', '"priority":5e0').encode() + b"\n")
        payload = agent.answer_to(message)["payload"]
        self.assertEqual([repr(payload[name]) for name in ("attempt", "priority")], ["1", "5"])

    def test_an_unknown_action_is_refused_and_not_remembered(self):
        agent, message = self.ready(), command("fly")
        self.assert_failed(agent.ask(message), "unknown_action", False)
        self.assertFalse(self.folders.entry(message).exists())


class Handlers(AgentTest):
    def test_ten_thousand_logs_arrive_whole_and_in_order(self):
        agent = self.ready()
        answer = agent.ask(command("chat", {"lines": 10_000}))
        self.assertEqual(answer["payload"], {"lines": 10_000})
        self.assertEqual([log["fields"]["number"] for log in agent.logs], list(range(10_000)))

    def test_a_long_token_comes_in_pieces(self):
        agent = self.ready()
        text = "\u0001é😀" * 40_000
        agent.send(command("chat", {"lines": 0, "token": "\u0001"}))
        self.assertEqual(agent.read_event()["payload"], {"text": "\u0001"})
        agent.read_event()
        inputs = {"lines": 0, "token": text[:60_000]}
        agent.send(command("chat", inputs))
        pieces = [agent.read_event(), agent.read_event()]
        self.assertEqual("".join(piece["payload"]["text"] for piece in pieces), inputs["token"])
        self.assertNotIn("status", pieces[0])

    def test_a_thread_that_the_work_left_behind_is_not_heard_after_the_answer(self):
        agent, message = self.ready(), command("linger", {"times": 10_000})
        agent.ask(message)
        other = agent.send(command("chat", {"lines": 1_000, "token": "end"}))
        events = [agent.read_event(), agent.read_event()]
        self.assertEqual([event["correlation_id"] for event in events], [other["correlation_id"]] * 2)

    def test_an_answer_waits_for_a_thread_that_is_about_to_speak(self):
        said, speaks, may_end, goes_on = [], threading.Event(), threading.Event(), threading.Event()

        class Listener:
            workspace = Path("/")

            def send_event(self, *_):
                speaks.set()
                may_end.wait(PATIENCE_S)
                said.append("progress")

        class Watched:
            """A lock that tells when somebody has to wait for it."""

            def __init__(self, lock):
                self.lock = lock

            def __enter__(self):
                if not self.lock.acquire(blocking=False):
                    goes_on.set()
                    self.lock.acquire()

            def __exit__(self, *_):
                self.lock.release()

        with mock.patch.object(threading, "Lock", lambda lock=threading.Lock(): Watched(lock)):
            message = command("work")
            task = hapax_agent.Task(Listener(), hapax_agent.Flight(message, message["idempotency_key"]), Path("/"))

        def close():
            task.close()
            said.append("answer")
            goes_on.set()

        threads = [threading.Thread(target=target) for target in (task.progress, close)]
        threads[0].start()
        self.assertTrue(speaks.wait(PATIENCE_S))
        threads[1].start()
        self.assertTrue(goes_on.wait(PATIENCE_S))
        may_end.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        task.progress()
        self.assertEqual(said, ["progress", "answer"])

    def test_a_failure_for_good_is_an_answer_that_is_kept(self):
        agent, message = self.ready(), command("fail", {"retryable": False})
        first = agent.ask(message)
        self.assert_failed(first, "no_luck", False)
        self.assert_same_answer(first, agent.ask(again(message)))
        self.assertEqual(self.folders.executions(message), 1)

    def test_a_failure_that_may_be_retried_is_worked_on_again(self):
        agent, message = self.ready(), command("fail", {"retryable": True})
        self.assert_failed(agent.ask(message), "no_luck", True)
        self.assertEqual(agent.ask(again(message))["payload"]["message"], "failed 2 times")
        self.assertEqual(os.listdir(self.folders.state), ["lock"])

    def test_whatever_a_handler_does_the_agent_answers_and_lives(self):
        agent = self.ready()
        for how, code in [
            ("raise", "exception"), ("exit", "exception"), ("nan", "exception"), ("late", "exception"),
            ("huge", "too_large"), ("huge_event", "too_large"),
        ]:
            with self.subTest(how):
                message = agent.send(command("misbehave", {"how": how}))
                self.assert_failed(agent.answer_to(message), code, code == "exception")
        self.assertEqual(agent.ask(command("work"))["status"], "success")

    def test_what_a_handler_prints_is_no_message(self):
        agent = self.ready()
        self.assertEqual(agent.ask(command("misbehave", {"how": "print"}))["payload"], {"printed": True})
        agent.kill()
        self.assertIn(b"a stray line", agent.stderr)
        self.assertIn(b"a stray child", agent.stderr)

    def test_a_question_is_an_answer(self):
        event = self.ready().ask(command("ask"))
        self.assertEqual((event["status"], event["payload"]), ("clarification", {"questions": ["Which one?"]}))

    def test_a_question_without_words_is_none(self):
        self.assert_failed(self.ready().ask(command("ask", {"questions": []})), "exception", True)

    def test_artifacts_are_staged_and_described(self):
        agent, message = self.ready(), command("work", {"what": "a"})
        event = agent.ask(message)
        content = b"made for a\n"
        described = {"path": "out/made.txt", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        self.assertEqual(event["artifacts"], [described])
        self.assertEqual((self.folders.staged(message) / "out/made.txt").read_bytes(), content)
        self.assertEqual(os.listdir(self.folders.staged(message) / "out"), ["made.txt"])
        self.assertEqual(os.listdir(self.folders.workspace), [], "the workspace is the engine's")

    def test_no_artifact_leads_out_of_the_staging_folder(self):
        outside = str(self.folders.root / "outside")
        paths = ["../x", outside, "a/../../x", "", "a//b", "./a", "a/", "link" + outside, "leaf", "a\nb", "a\\b"]
        paths += ["a\x7fb", "a\x85b", "inner", "inner/x", "x" * 256, "é" * 128, "a/" * 2_048 + "a"]
        paths += [".git", ".git/hooks/pre-commit", ".hapax/lock"]
        event = self.ready().ask(command("escape", {"paths": paths}))
        self.assertEqual(event["payload"]["refused"], [*paths, "path"])
        self.assertEqual([artifact["path"] for artifact in event["artifacts"]], ["real.txt"])
        self.assertFalse(Path(outside).exists())

    def test_every_agent_knows_what_a_check_asks_for(self):
        agent, outputs = self.ready(), [{"path": "a/b.txt", "required": True}]
        message = command("hapax.check", {"text": "made", "pause_ms": 0, "unheard_of": 1}, outputs=outputs)
        agent.send(message)
        self.assertEqual(agent.read_event()["event"], "progress")
        first, second = agent.answer_to(message), agent.ask(again(message))
        self.assert_same_answer(first, second)
        self.assertEqual((self.folders.staged(message) / "a/b.txt").read_text(), "made")
        other = agent.ask(command("hapax.check", {"text": "made"}, outputs=outputs))
        self.assertNotEqual(first["payload"], other["payload"], "each execution says something else")
        for inputs in ({"text": 7}, {"pause_ms": "long"}, {"pause_ms": -1}):
            self.assert_failed(agent.ask(command("hapax.check", inputs)), "inputs", False)

    def test_work_on_another_snapshot_is_refused_where_that_is_checked(self):
        agent = self.ready("check_snapshot=1")
        (self.folders.workspace / "a.txt").write_text("a")
        there = snapshot_id(self.folders.workspace)
        wrong, right = command("work", {"what": "a"}), command("work", {"what": "a"}, snapshot=there)
        event = agent.ask(wrong)
        self.assert_failed(event, "version_mismatch", True)
        self.assertEqual(event["observed_version"], {"snapshot_id": there})
        self.assertEqual(agent.ask(right)["observed_version"], {"snapshot_id": there})
        self.assertEqual(self.folders.executions(wrong), 0)


class Bound(AgentTest):
    def work(self, agent, count):
        messages = [command("work", {"what": number}) for number in range(count)]
        for message in messages:
            agent.ask(message)
        return messages

    def test_an_answer_without_acknowledgement_is_never_dropped(self):
        agent = self.ready("cache_bound=2")
        messages = self.work(agent, 5)
        self.assertEqual([log["level"] for log in agent.logs], ["warn"], "it says so, once")
        agent.kill()
        agent = self.start("cache_bound=2")
        for message in messages:
            self.assertEqual(agent.ask(again(message))["payload"]["count"], 1)

    def test_the_answer_acknowledged_first_is_dropped_first_with_its_files(self):
        agent = self.ready("cache_bound=2")
        first, second = self.work(agent, 2)
        agent.ack(second)
        agent.ack(first)
        self.assertEqual(agent.ask(again(second))["payload"]["count"], 1, "a late duplicate is still answered")
        self.assertTrue(json.loads(self.folders.entry(second).read_text())["acked"])
        agent.ask(command("work", {"what": "new"}))
        self.assertFalse(self.folders.entry(second).exists() or self.folders.staged(second).exists())
        self.assertTrue(self.folders.entry(first).exists() and self.folders.staged(first).exists())
        self.assertEqual(agent.ask(again(second))["payload"]["count"], 2)

    def test_acknowledgements_outlive_the_agent(self):
        agent = self.ready("cache_bound=2")
        first, second = self.work(agent, 2)
        agent.ack(first)
        agent.ask(again(second))
        agent.kill()
        agent = self.ready("cache_bound=2")
        agent.ask(command("work", {"what": "new"}))
        self.assertEqual([self.folders.entry(message).exists() for message in (first, second)], [False, True])



class Acknowledged(AgentTest):
    def test_a_failure_that_is_to_be_forgotten_is_worked_on_again(self):
        agent, message = self.ready(), command("fail", {"retryable": False})
        for count in (1, 2):
            self.assertEqual(agent.ask(again(message))["payload"]["message"], f"failed {count} times")
            self.assertEqual(agent.ask(again(message))["payload"]["message"], f"failed {count} times")
            agent.ack(message, forget=True)
        agent.ask(command("unknown"))  # Lines are read in order: the acknowledgement is heeded by now.
        agent.kill()
        answer = self.ready().ask(again(message))
        self.assertEqual(answer["payload"]["message"], "failed 3 times", "after a restart too")

    def test_a_failure_that_the_engine_has_is_not_kept_even_if_it_does_not_say_so(self):
        agent, message = self.ready(), command("fail", {"retryable": False})
        agent.ask(message)
        agent.ack(message)
        self.assertEqual(agent.ask(again(message))["payload"]["message"], "failed 2 times")

    def test_an_answer_that_the_engine_could_not_use_is_made_anew(self):
        for acks in ([{"forget": True}], [{}, {"forget": True}]):
            with self.subTest(acks):
                agent, message = self.ready(), command("work", {"what": len(acks)})
                agent.ask(message)
                for ack in acks:
                    agent.ack(message, **ack)
                self.assertEqual(agent.ask(again(message))["payload"]["count"], 2)
                agent.kill()

    def test_what_is_not_to_be_forgotten_is_kept(self):
        agent, message = self.ready(), command("work", {"what": "a"})
        agent.ask(message)
        for _ in range(2):
            agent.ack(message, forget=False)
            self.assertEqual(agent.ask(again(message))["payload"]["count"], 1)

    def test_an_answer_whose_files_are_installed_is_given_and_one_whose_files_are_gone_is_not(self):
        agent, message = self.ready(), command("work", {"what": "a"})
        event = agent.ask(message)
        self.folders.install(message, event)
        agent.ack(message)
        shutil.rmtree(self.folders.staged(message))  # As the engine does when it has installed them.
        self.assert_same_answer(event, agent.ask(again(message)))
        (self.folders.workspace / "out/made.txt").write_text("somebody undid it")
        self.assertEqual(agent.ask(again(message))["payload"]["count"], 2)
        self.assertTrue((self.folders.staged(message) / "out/made.txt").exists())
        shutil.rmtree(self.folders.staged(message))
        self.assertEqual(agent.ask(again(message))["payload"]["count"], 2, "nobody has acknowledged this one")

    def test_an_answer_whose_staged_files_were_changed_after_the_engine_had_it_is_made_anew(self):
        agent, message = self.ready(), command("work", {"what": "a"})
        agent.ask(message)
        agent.ack(message)
        (self.folders.staged(message) / "out/made.txt").write_text("something else")
        self.assertEqual(agent.ask(again(message))["payload"]["count"], 2)

    def test_work_that_was_cut_off_stays_known_whatever_is_acknowledged(self):
        agent = self.ready()
        message = self.hold(agent)
        for more in ({}, {"forget": True}):
            agent.ack(message, **more)  # Without an answer, this can only be about an earlier one.
            agent.ask(command("unknown"))
            agent.kill()
            agent = self.ready()
            agent.ack(message, **more)
            agent.ack(command("work", {"what": "never seen"}), **more)
            message = agent.send(again(message))
            self.assertEqual(agent.read_event()["event"], "progress")
        self.release(message)
        self.assertEqual(agent.answer_to(message)["payload"], {"count": 3, "was_cut_off": True})


@unittest.skipIf("HAPAX_CANARY" in os.environ, "this is the run in which a canary is awake")
class Canaries(unittest.TestCase):
    """Each planted mistake makes its test fail: by what it asserts, not by an error."""

    def assert_noticed(self, canary, test):
        run = [sys.executable, "-m", "unittest", f"test_hapax_agent.{test}"]
        for environment, code in (({}, 0), ({"HAPAX_CANARY": canary}, 1)):
            done = subprocess.run(run, cwd=HERE, env={**os.environ, **environment}, capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual("FAILED (failures=1)" in done.stderr, bool(code), done.stderr)

    def test_an_answer_that_is_written_down_too_late_is_noticed(self):
        self.assert_noticed("cache_after_answer", "Crashes.test_an_answer_that_was_read_is_never_worked_for_again")

    def test_a_key_that_changes_with_the_message_is_noticed(self):
        self.assert_noticed("key_with_message_id", "Duplicates.test_a_duplicate_is_answered_from_the_cache")


if __name__ == "__main__":
    unittest.main()

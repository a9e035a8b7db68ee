"""An agent for Hapax in one file without dependencies: commands in, events out, each piece of work once.

Invariant: an answer that may have been read is on the disk. `started` is written before the work; `done`, with the
answer, before the answer is sent. So whatever kills the agent, a command that comes again is answered as before, or is
worked on again from an empty staging folder; never is half of the work taken for the whole.

    from hapax_agent import Agent

    agent = Agent("greeter")

    @agent.on("greet")
    def greet(task):
        task.artifact("hello.txt", f"Hello, {task.inputs['name']}!\n")
        return {"greeted": task.inputs["name"]}

    agent.run()

The wire is described in docs/protocol.md. Needs Python 3.9 and a Unix (for flock and signals).
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import decimal
import fcntl
import functools
import hashlib
import itertools
import json
import math
import os
import re
import select
import shutil
import signal
import stat
import sys
import threading
import time
import traceback
import uuid
from pathlib import Path

__all__ = [
    "Agent", "CanonicalError", "Failed", "ProtocolError", "SnapshotError", "Task",
    "canonical_json", "command_key", "parse_json", "snapshot_id",
]

LINE_LIMIT = 262_144
"""The most bytes of a line, with its newline."""

MAX_DEPTH = 127
"""How many arrays and objects may be nested: the engine reads no deeper."""

MAX_CORRELATION_CHARS = 255
ANSWER_ROOM = 2_048
"""Bytes that a recorded answer leaves free: it may be sent again under a longer correlation id."""

MAX_TEXT_CHARS = 4_000
MAX_ID_CHARS = 4_000
"""Characters of a task's or snapshot's id that a failure gives back: it must fit into a line, whatever it is about."""

MAX_BEAT_TASK_CHARS = 255
"""Characters of a task's id in a heartbeat, which must fit into a pipe that is nearly full."""

MAX_PATH_CHARS = 4_096
MAX_NAME_BYTES = 255
"""Bytes of a file's or folder's name: hardly any file system takes more."""

TOKEN_CHARS = 32_768
"""Characters of a token's piece; a character takes at most six bytes on the wire."""

KEY = re.compile(r"ik:[0-9a-f]{64}")
ACTION = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
LEVELS = ("debug", "info", "warn", "error")
STATUS = re.compile(r"[a-z][a-z0-9_]*")
SHA256 = re.compile(r"[0-9a-f]{64}")
NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]")
"""Control characters, the backslash, and what UTF-8 can't hold."""

NOT_FOR_AGENTS = (".git", ".hapax")
"""Names at the top of a workspace that no snapshot counts, and below which the engine installs nothing."""

CHECK_ACTION = "hapax.check"
"""What `hapax agent check` asks for; every agent of a kit knows it by itself."""


# ---- errors


class CanonicalError(ValueError):
    """The value or text has no canonical form."""


class ProtocolError(ValueError):
    """A line that can't be read as a message. It is answered, and the next line is read.

    `line` is what is known of it where it never became whole.
    """

    def __init__(self, reason, line=b""):
        super().__init__(reason)
        self.line = line


class SnapshotError(ValueError):
    """The folder has no snapshot id."""


class Failed(Exception):
    """Raised by a handler to say why the work failed.

    A failure that is retryable isn't kept: the next command with this key is worked on again. One that isn't is an
    answer like any other, and every command with this key gets it until the engine acknowledges it: whoever sends the
    command after that wants it tried again.
    """

    def __init__(self, code, message, retryable=False):
        super().__init__(message)
        self.code, self.message, self.retryable = code, message, retryable


# ---- canonical JSON and keys


def parse_json(text):
    """Reads JSON that has one meaning: no duplicate keys, no lone surrogates, no NaN, no number beyond the floats."""
    hooks = {"object_pairs_hook": _object, "parse_int": _integer, "parse_float": _float, "parse_constant": _constant}
    try:
        value = json.loads(text, **hooks)
    except RecursionError:
        raise CanonicalError(f"nested deeper than {MAX_DEPTH}") from None
    except CanonicalError:
        raise
    except ValueError as error:
        raise CanonicalError(f"no JSON: {error}") from None
    canonical_json(value)  # It alone sees how deep a value is, and the halves of surrogate pairs.
    return value


def canonical_json(value):
    """The one text of a JSON value: RFC 8785, but an integer has all its digits, however many they are."""
    parts = []
    _write(value, parts.append, 0)
    return "".join(parts)


def command_key(action, task_id, snapshot_id, inputs, expected_outputs):
    """The idempotency key of a command: a hash of what is to be done and of nothing else."""
    for name, text in (("action", action), ("task_id", task_id), ("snapshot_id", snapshot_id)):
        if "\n" in text:
            raise CanonicalError(f"{name} contains a newline; two commands could share a key")
    fields = [action, task_id, snapshot_id, canonical_json(inputs), canonical_json(expected_outputs)]
    return "ik:" + hashlib.sha256(_utf8("\n".join(fields))).hexdigest()


def _object(pairs):
    value = dict(pairs)
    if len(value) < len(pairs):
        seen = collections.Counter(key for key, _ in pairs)
        raise CanonicalError(f"the key {seen.most_common(1)[0][0]!r} occurs twice in one object")
    return value


_CHUNK = 600  # Digits that Python converts at once, whatever its limit is set to.


def _integer(text):
    if len(text) <= _CHUNK:
        return int(text)
    digits, number = text.lstrip("-"), 0
    for at in range(0, len(digits), _CHUNK):
        piece = digits[at : at + _CHUNK]
        number = number * 10 ** len(piece) + int(piece)
    return -number if text.startswith("-") else number


def _digits(number):
    if number < 0:
        return "-" + _digits(-number)
    pieces = []
    while number >= 10**_CHUNK:
        number, rest = divmod(number, 10**_CHUNK)
        pieces.append(str(rest).zfill(_CHUNK))
    return "".join([str(number), *reversed(pieces)])


def _float(text):
    number = float(text)
    if math.isinf(number):
        raise CanonicalError(f"the number {text[:40]} is too large for a float")
    return number


def _constant(name):
    raise CanonicalError(f"{name} is no JSON")


_WORDS = {None: "null", True: "true", False: "false"}


def _write(value, out, depth):
    if value is None or value is True or value is False:
        out(_WORDS[value])
    elif isinstance(value, str):
        _utf8(value)
        out(json.encoder.encode_basestring(value))
    elif isinstance(value, int):
        out(_digits(int(value)))
    elif isinstance(value, float):
        out(_es6(value))
    elif isinstance(value, (list, tuple)):
        _write_all(value, out, depth, "[]", _write)
    elif isinstance(value, dict):
        _write_all(sorted(value.items(), key=_utf16_of_key), out, depth, "{}", _write_pair)
    else:
        raise CanonicalError(f"{type(value).__name__} is no JSON")


def _write_all(items, out, depth, brackets, write):
    if depth == MAX_DEPTH:
        raise CanonicalError(f"nested deeper than {MAX_DEPTH}")
    out(brackets[0])
    for index, item in enumerate(items):
        if index:
            out(",")
        write(item, out, depth + 1)
    out(brackets[1])


def _write_pair(pair, out, depth):
    _write(pair[0], out, depth)
    out(":")
    _write(pair[1], out, depth)


def _utf16_of_key(pair):
    key = pair[0]
    if not isinstance(key, str):
        raise CanonicalError(f"{type(key).__name__} can't be an object's key")
    return key.encode("utf-16-be", "surrogatepass")


def _utf8(text):
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise CanonicalError("a lone surrogate in a string") from None


def _es6(number):
    """The number as JavaScript prints it: the fewest digits that mean it, as an exponent from 1e21 and below 1e-6."""
    if not math.isfinite(number):
        raise CanonicalError("a number is not finite")
    if number == 0:
        return "0"
    sign, digits, exponent = decimal.Decimal(float.__repr__(number)).as_tuple()
    point = len(digits) + exponent
    text = "".join(map(str, digits)).rstrip("0")
    if 0 < point <= 21:
        body = text.ljust(point, "0") if len(text) <= point else f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        body = "0." + "0" * -point + text
    else:
        body = text[0] + ("." + text[1:] if text[1:] else "") + f"e{point - 1:+d}"
    return "-" + body if sign else body


# ---- snapshots


def snapshot_id(folder, ignore=NOT_FOR_AGENTS):
    """The id of a folder's content: the same files give the same id, whatever their times, owners and modes.

    `ignore` names what doesn't count at the top, be it a folder or a file: in a worktree of git, `.git` is a file.
    """
    digest = hashlib.sha256(b"hapax.snapshot.v1")
    for path, content, size in sorted(_entries(os.fsencode(folder), {os.fsencode(name) for name in ignore})):
        digest.update(len(path).to_bytes(4, "big") + path + content + size.to_bytes(8, "big"))
    return "snap-" + digest.hexdigest()[:12]


def _entries(root, ignore):
    """(path, hash, size) of every file and link below a folder, in no order. Pipes, sockets and devices don't count."""
    folders = [b""]
    while folders:
        inside = folders.pop()
        with os.scandir(os.path.join(root, inside)) as entries:
            for entry in entries:
                path = inside + entry.name
                _check_utf8("path", path)
                if not inside and entry.name in ignore:
                    continue
                if entry.is_symlink():
                    yield (path, *_link(root, path))
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(path + b"/")
                elif entry.is_file(follow_symlinks=False):
                    with open(os.path.join(root, path), "rb") as file:
                        yield (path, *_hash(file))


def _check_utf8(what, name):
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        raise SnapshotError(f"the {what} {name!r} is not UTF-8") from None


def _link(root, path):
    """A link counts by its target's name. One that leads out would pass off as content what isn't in the folder."""
    target = os.readlink(os.path.join(root, path))
    _check_utf8("link's target", target)
    by_name = os.path.normpath(os.path.join(os.path.dirname(path), target))
    climbs = os.path.isabs(target) or by_name == b".." or by_name.startswith(b"../")
    if climbs or not _is_inside(os.path.join(root, path), root):
        raise SnapshotError(f"the link {path.decode()!r} leads out of the folder")
    return hashlib.sha256(b"symlink:" + target).digest(), len(target)


def _is_inside(path, folder):
    real = os.path.realpath(folder)
    return os.path.commonpath([os.path.realpath(path), real]) == real


def _hash(file):
    digest, size = hashlib.sha256(), 0
    while True:
        piece = file.read(1 << 20)
        if not piece:
            return digest.digest(), size
        digest.update(piece)
        size += len(piece)


# ---- files


def write_atomic(path, data):
    """Writes a file whole or not at all, and so that a power failure doesn't undo it."""
    path = Path(path)
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(folder):
    """Makes names in a folder durable: a rename may be forgotten until then."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path):
    """Removes whatever stands at a path. Only a folder is opened: a pipe would wait for somebody to write."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if is_folder:
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _open_itself(path, flags):
    """Opens a file without following a link, and without waiting if it is a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _open_regular(path):
    """Opens a regular file to read it; anything else that stands there is a ValueError."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError("it is no regular file")
    return open(path, "rb", opener=_open_itself)


# ---- the wire


class Lines:
    """The lines of a stream, of which never more than the limit is held.

    A line that is too long is told once, as a ProtocolError in its place, and dropped up to its newline.
    """

    def __init__(self, read, limit=LINE_LIMIT):
        self._read, self._limit = read, limit

    def __iter__(self):
        held, skipping = bytearray(), False
        while True:
            chunk = self._read(self._limit - len(held))
            if not chunk:
                break
            searched = len(held)
            held += chunk
            end = held.find(b"\n", searched)
            while end >= 0:
                if not skipping:
                    yield bytes(held[:end])
                skipping = False
                del held[: end + 1]
                end = held.find(b"\n")
            if len(held) == self._limit and not skipping:
                skipping = True
                yield ProtocolError(f"the line is longer than {self._limit} bytes", bytes(held))
            if skipping:
                held.clear()
        if held:
            yield ProtocolError("the input ended within a line", bytes(held))


class Wire:
    """The way out. One thread writes at a time, so lines are whole. When nobody reads any more, `on_lost` is called."""

    def __init__(self, descriptor, on_lost):
        self._descriptor, self._on_lost = descriptor, on_lost
        self._lock, self._is_lost = threading.Lock(), False

    def send(self, message):
        data = encode(message)
        with self._lock:
            self._write(data)

    def send_if_free(self, message):
        """Sends a short message unless that would mean to wait for the reader."""
        data = encode(message)
        if len(data) > select.PIPE_BUF or not self._lock.acquire(timeout=0.5):
            return
        try:
            if select.select([], [self._descriptor], [], 0)[1]:
                self._write(data)
        finally:
            self._lock.release()

    def _write(self, data):
        rest = memoryview(data)
        try:
            while rest and not self._is_lost:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self._is_lost = True
            self._on_lost()


def encode(message):
    """A message as its line."""
    data = _utf8(canonical_json(message)) + b"\n"
    if len(data) > LINE_LIMIT:
        raise ProtocolError(f"a message of {len(data)} bytes is longer than {LINE_LIMIT}")
    return data


def _clean(text):
    """Any text as one that can be sent: exceptions and file names may hold what UTF-8 can't, and be long."""
    return str(text)[:MAX_TEXT_CHARS].encode("utf-8", "backslashreplace").decode("utf-8")


def _now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_message_id():
    """`msg-` and a UUID of version 7: 48 bits of milliseconds, then chance."""
    chance = uuid.uuid4().int
    value = (time.time_ns() // 1_000_000) << 80 | 7 << 76 | (chance >> 64 & 0xFFF) << 64 | chance & ((1 << 64) - 1)
    return f"msg-{uuid.UUID(int=value)}"


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:[Zz]|([+-]\d\d:\d\d))", re.ASCII)


def _parse_time(text):
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no RFC 3339 time")
    day, clock, fraction, offset = match.groups()
    fraction = (fraction or "0")[:6].ljust(6, "0")
    return datetime.datetime.fromisoformat(f"{day}T{clock}.{fraction}{offset or '+00:00'}")


# ---- reading messages


def decode(line):
    """A line as an object."""
    try:
        message = parse_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the line is not UTF-8 at byte {error.start}") from None
    except CanonicalError as error:
        raise ProtocolError(str(error)) from None
    if not isinstance(message, dict):
        raise ProtocolError("the line is no JSON object")
    return message


def check_command(command):
    """Demands every required field, and that the key is the key of this very content."""
    for name in ("message_id", "correlation_id", "task_id", "action", "idempotency_key", "deadline"):
        _field(command, name, str)
    if len(command["correlation_id"]) > MAX_CORRELATION_CHARS:
        raise ProtocolError(f"correlation_id has more than {MAX_CORRELATION_CHARS} characters")
    _field(_field(command, "to", dict), "agent_type", str, "to.")
    _check_optional(command["to"], ("agent_id",), "to.")
    _field(_field(command, "version", dict), "snapshot_id", str, "version.")
    _check_optional(command["version"], ("specs_hash", "code_hash"), "version.")
    _check_retry(_field(command, "retry", dict))
    _field(command, "inputs", dict)
    for output in _field(command, "expected_outputs", list):
        _field(output, "path", str, "expected_outputs[].")
        _field(output, "required", bool, "expected_outputs[].")
        _check_optional(output, ("description",), "expected_outputs[].")
    try:
        _parse_time(command["deadline"])
    except ValueError as error:
        raise ProtocolError(f"deadline: {error}") from None
    if "priority" in command:
        _field(command, "priority", int)
    _check_key(command)


def _check_retry(retry):
    for name in ("attempt", "max_attempts"):
        if _field(retry, name, int, "retry.") < 1:
            raise ProtocolError(f"retry.{name} is less than 1")


def _check_key(command):
    content = (command["version"]["snapshot_id"], command["inputs"], command["expected_outputs"])
    try:
        key = command_key(command["action"], command["task_id"], *content)
    except CanonicalError as error:
        raise ProtocolError(str(error)) from None
    if command["idempotency_key"] != key:
        raise ProtocolError(f"idempotency_key is not the key of this command, which is {key}")


def _check_optional(message, names, inside):
    for name in names:
        if not isinstance(message.get(name), (str, type(None))):
            raise ProtocolError(f"{inside}{name} is no text")


def _field(message, name, kind, inside=""):
    value = message.get(name) if isinstance(message, dict) else None
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # JSON has one kind of number: 1.0 is an integer.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)) or value == "":
        raise ProtocolError(f"{inside}{name} is missing or no {_KINDS[kind]}")
    return value


_KINDS = {str: "text", dict: "object", list: "array", int: "integer", bool: "boolean"}


# ---- the result cache


class Cache:
    """What was begun and what came of it, one file for each key, so that it outlives the agent.

    An entry that is acknowledged may be dropped when there are more than `bound`, the oldest first; others never. An
    acknowledged failure is dropped at once.
    """

    def __init__(self, folder, bound, warn, on_drop):
        self._folder, self._bound, self._warn, self._on_drop = Path(folder), bound, warn, on_drop
        self._lock = threading.RLock()
        self._open, self._acked = {}, {}  # Keys by age; those of `open` with their state.
        self._grows = False
        self._lock_file = None

    def open(self, timeout_s):
        """Takes the folder for this process alone, and reads what an earlier one left."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = open(self._folder / "lock", "ab")
        until = time.monotonic() + timeout_s
        while not _try_flock(self._lock_file):
            if time.monotonic() >= until:
                raise TimeoutError("the lock is held: another process of this agent is alive")
            time.sleep(0.02)
        self._load()

    def recall(self, key):
        """The recorded answer and whether it is acknowledged, or nothing where the work is still to be done."""
        with self._lock:
            entry = self._read(key) if self._is_done(key) else None
            return (entry["event"], entry["acked"]) if entry and entry["state"] == "done" else None

    def start(self, key):
        """Notes that the work begins, and says whether it had begun before and was cut off."""
        with self._lock:
            was_cut_off = self._open.get(key) == "started"
            self._write(key, "started", False, None)
            self._shrink()
            return was_cut_off

    def done(self, key, event):
        """Writes the answer down. When this returns, no crash can undo it."""
        with self._lock:
            self._write(key, "done", False, event)

    def abandon(self, key):
        """The answer can't be written down, so its files are of no use. That the work was begun stays known.

        Where the answer's name is there and only not durable yet, the files stay: it may be found after a restart.
        """
        with self._lock, contextlib.suppress(OSError):
            entry = self._read(key)
            if entry and entry["state"] == "started":
                self._on_drop(key)

    def ack(self, key, forget):
        """The engine has the answer for good.

        A failure goes at once, and so does whatever is to be forgotten: if the command comes again, it is to be tried
        again. Where there is no answer, the acknowledgement is about an earlier one; that work was begun stays known.
        """
        with self._lock:
            if forget and self._is_done(key):
                self.forget(key)
            elif self._open.get(key) == "done":
                self._mark(key)

    def _mark(self, key):
        entry = self._read(key)
        if entry is None or entry["state"] != "done":
            return
        if _is_failure(entry["event"]):
            self.forget(key)
        else:
            self._write(key, "done", True, entry["event"])
            self._shrink()

    def forget(self, key):
        """Drops an entry, and its files only then: an answer that is still there must not name files that are gone."""
        with self._lock:
            self._drop_from_index(key)
            try:
                self._path(key).unlink()
            except FileNotFoundError:
                pass
            except OSError as error:
                self._warn("an entry of the result cache could not be dropped", reason=_clean(error))
                return
            self._on_drop(key)

    def _is_done(self, key):
        return "done" in (self._open.get(key), self._acked.get(key))

    def _path(self, key):
        return self._folder / f"{key[3:]}.json"

    def _load(self):
        found = []
        for path in list(self._folder.iterdir()):
            about = path.lstat()
            if path.suffix == ".tmp" and stat.S_ISDIR(about.st_mode):
                self._put_aside(path, "it is a folder, and no file that a crash left")
            elif path.suffix == ".tmp":
                path.unlink()
            elif re.fullmatch(r"[0-9a-f]{64}\.json", path.name):
                found.append((about.st_mtime_ns, "ik:" + path.stem))
        for _, key in sorted(found):
            entry = self._read(key)
            if entry:
                self._index(key, entry["state"], entry["acked"])
        self._shrink()

    def _write(self, key, state, acked, event):
        entry, path = {"v": 1, "key": key, "state": state, "acked": acked, "event": event}, self._path(key)
        data = _utf8(canonical_json(entry))
        try:
            write_atomic(path, data)
        except IsADirectoryError as error:
            self._put_aside(path, error)
            write_atomic(path, data)
        self._index(key, state, acked)

    def _index(self, key, state, acked):
        self._drop_from_index(key)
        if acked:
            self._acked[key] = state
        else:
            self._open[key] = state

    def _drop_from_index(self, key):
        self._open.pop(key, None)
        self._acked.pop(key, None)

    def _read(self, key):
        """An entry, or nothing if it can't be understood: it is moved aside then, for a person to look at."""
        path = self._path(key)
        try:
            with _open_regular(path) as file:
                entry = parse_json(file.read().decode("utf-8"))
            if _is_entry(entry, key):
                return entry
            reason = "it is no entry for this key"
        except FileNotFoundError:
            reason = "it is gone"
        except ValueError as error:
            reason = error
        self._drop_from_index(key)
        self._put_aside(path, reason)
        return None

    def _put_aside(self, path, reason):
        aside = path.with_name(f"{path.name}.corrupt")
        if os.path.lexists(path):
            _remove(aside)  # A folder can't take the place of what was moved there before.
            os.replace(path, aside)
        self._warn("a corrupt entry of the result cache counts as absent", file=path.name, reason=_clean(reason))

    def _shrink(self):
        while len(self._open) + len(self._acked) > self._bound and self._acked:
            self.forget(next(iter(self._acked)))
        grows = len(self._open) > self._bound
        if grows and not self._grows:
            self._warn("the result cache outgrows its bound: no answer is acknowledged", bound=self._bound)
        self._grows = grows


def _is_entry(entry, key):
    is_ours = isinstance(entry, dict) and entry.get("v") == 1 and entry.get("key") == key
    if not is_ours or not isinstance(entry.get("acked"), bool):
        return False
    if entry.get("state") == "started":
        return not entry["acked"]
    return entry.get("state") == "done" and _is_answer(entry.get("event"))


def _is_answer(event):
    """Whether something that was read is an event with all that an answer needs: it will be sent as it is."""
    try:
        _check_answer(event)
    except (Failed, ProtocolError, TypeError):
        return False
    return True


def _check_answer(event):
    for name in ("kind", "message_id", "correlation_id", "occurred_at"):
        _field(event, name, str)
    if event["kind"] != "event" or not isinstance(event.get("task_id"), str):  # A failure's task_id may be empty.
        raise ProtocolError("it is no event of a task")
    if not ACTION.fullmatch(_field(event, "event", str)) or not STATUS.fullmatch(_field(event, "status", str)):
        raise ProtocolError("its name or its status is no word")
    _field(_field(event, "from", dict), "agent_type", str, "from.")
    payload = _field(event, "payload", dict)
    if _is_failure(event):
        _check_reason(event["status"], payload)
    else:
        _result((event["status"], payload))
    for artifact in _field(event, "artifacts", list):
        _check_artifact(artifact)
    if "observed_version" in event:
        _field(_field(event, "observed_version", dict), "snapshot_id", str, "observed_version.")


def _check_reason(status, payload):
    _field(payload, "code", str, "payload.")
    _field(payload, "retryable", bool, "payload.")
    if status != "failed" or not isinstance(payload.get("message"), str):
        raise ProtocolError("it doesn't say that and why it failed")


def _check_artifact(artifact):
    _check_path(_field(artifact, "path", str, "artifacts[]."))
    if not SHA256.fullmatch(_field(artifact, "sha256", str, "artifacts[].")):
        raise ProtocolError("sha256 is no hash")
    if _field(artifact, "size", int, "artifacts[].") < 0:
        raise ProtocolError("size is less than none")


def _is_failure(event):
    return event["event"] == "error" or event["status"] == "failed"


def _try_flock(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ---- what a handler sees


class Task:
    """One piece of work: what is asked for, where to look, where to write, and how to tell how it goes.

    `was_cut_off` says that an earlier attempt began and didn't end: what it did outside of the staging folder may have
    happened. Whoever sends mails or deploys looks first, by `key`.
    """

    def __init__(self, agent, flight, staging):
        self._agent, self._artifacts = agent, {}
        self._speaking, self._is_open = threading.Lock(), True
        command = self.command = flight.command
        self.key, self.was_cut_off = flight.key, flight.was_cut_off
        self.action, self.task_id = command["action"], command["task_id"]
        self.inputs, self.expected_outputs = command["inputs"], command["expected_outputs"]
        self.snapshot_id = command["version"]["snapshot_id"]
        self.attempt, self.max_attempts = (int(command["retry"][name]) for name in ("attempt", "max_attempts"))
        self.priority, self.deadline = int(command.get("priority", 5)), _parse_time(command["deadline"])
        self.workspace, self.staging = agent.workspace, staging

    @property
    def stopping(self):
        """Whether the agent is about to end. Work that is cut off is done again from its beginning."""
        return self._agent.stopping

    def remaining_s(self):
        """Seconds up to the deadline; less than none once it has passed."""
        return (self.deadline - datetime.datetime.now(datetime.timezone.utc)).total_seconds()

    def artifact(self, path, content=None):
        """Puts a file into the staging folder, whole or not at all, and returns its path, sha256 and size.

        Without content, the file must be there already. The engine installs it at the same path of the workspace.
        """
        target = self._staged(path)
        if content is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(target, content.encode("utf-8") if isinstance(content, str) else memoryview(content))
        self._artifacts[path] = {"path": path, **_seal(target, self.staging)}
        return dict(self._artifacts[path])

    def artifacts(self):
        """What was put there so far, by path."""
        return [self._artifacts[path] for path in sorted(self._artifacts)]

    def progress(self, percent=None, message=None):
        """Tells how far the work is; the run's stream shows it."""
        payload = {} if percent is None else {"percent": max(0, min(percent, 100))}
        self.event("progress", payload if message is None else {**payload, "message": _clean(message)})

    def token(self, text):
        """Shows a piece of text while it comes into being."""
        for at in range(0, len(text), TOKEN_CHARS):
            self.event("token", {"text": text[at : at + TOKEN_CHARS]})

    def event(self, name, payload):
        """Sends an event that doesn't end the command. Behind the answer, which does, nothing is sent."""
        if name == "error" or not ACTION.fullmatch(name) or not isinstance(payload, dict):
            raise ValueError("an event has a dotted name, which isn't `error`, and a payload, which is a dict")
        with self._speaking:
            if self._is_open:
                self._agent.send_event(self.command, name, payload)

    def log(self, level, message, **fields):
        """As Agent.log."""
        self._agent.log(level, message, **fields)

    def close(self):
        """After the answer nothing more may be said about a command, not even by a thread that is about to."""
        with self._speaking:
            self._is_open = False

    def _staged(self, path):
        """Where a path lies in the staging folder. What the engine would refuse later is refused here, by its name."""
        names = _check_path(path)
        target = self.staging.joinpath(*names)
        if any(self.staging.joinpath(*names[:count]).is_symlink() for count in range(1, len(names))):
            raise Failed("path", f"a link stands on the way to {_clean(path)!r}")
        return target


def _check_path(path):
    """The names in a path that an artifact may have."""
    names = path.split("/")
    if {"", ".", ".."} & set(names) or NOT_IN_PATHS.search(path):
        raise Failed("path", f"{_clean(path)!r} is no relative path with / between names")
    if len(path) > MAX_PATH_CHARS or any(len(_utf8(name)) > MAX_NAME_BYTES for name in names):
        raise Failed("path", f"{_clean(path)!r} or a name in it is too long")
    if names[0] in NOT_FOR_AGENTS:
        raise Failed("path", f"{_clean(path)!r} lies where agents don't write")
    return names


def _seal(path, staging):
    """Makes a staged file durable, with every folder above it, and describes it."""
    try:
        file = _open_regular(path)
    except ValueError as error:
        raise Failed("path", f"{_clean(path.name)!r}: {error}") from None
    with file:
        os.fsync(file.fileno())
        digest, size = _hash(file)
    for folder in itertools.takewhile(lambda folder: folder != staging.parent, path.parents):
        sync_folder(folder)
    sync_folder(staging.parent)
    return {"sha256": digest.hex(), "size": size}


def _is_there(artifact, staging, workspace):
    """Whether a file is staged as it was described or, where none is staged, stands so in the workspace."""
    for folder in (staging, workspace):
        try:
            with _open_regular(folder / artifact["path"]) as file:
                digest, size = _hash(file)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return False
        return (digest.hex(), size) == (artifact["sha256"], artifact["size"])
    return False


def _be_checked(task):
    """Does what a check asks for. Each execution says something else, so that an answer from the cache is seen."""
    text, pause_ms = task.inputs.get("text", ""), task.inputs.get("pause_ms", 0)
    if not isinstance(text, str) or not isinstance(pause_ms, int) or pause_ms < 0:
        raise Failed("inputs", "text is a text, and pause_ms a number of milliseconds")
    task.progress(0, "begun")
    time.sleep(pause_ms / 1_000)
    for output in task.expected_outputs:
        task.artifact(output["path"], text)
    return {"execution": str(uuid.uuid4())}


# ---- the agent


class Flight:
    """A piece of work under way, and the correlation ids of every command that waits for it."""

    def __init__(self, command, key):
        self.command, self.key, self.correlations = command, key, [command["correlation_id"]]
        self.was_cut_off, self.task = False, None


class Agent:
    """Reads commands, has each done once by its handler, and answers.

    `concurrency` commands are worked on at once, each in a thread of its own; heartbeats, acknowledgements and
    duplicates are served meanwhile. With `check_snapshot` no work begins on a snapshot that isn't the command's.
    """

    def __init__(self, agent_type, *, concurrency=1, cache_bound=1_000, queue_bound=256, check_snapshot=False,
                 lock_timeout_s=10.0, grace_s=5.0):
        environment = os.environ.get
        name, number = environment("HAPAX_AGENT_TYPE") or agent_type, environment("HAPAX_AGENT_ID")
        self.address = {"agent_type": name, "agent_id": number} if number else {"agent_type": name}
        self.workspace = Path(environment("HAPAX_WORKSPACE") or os.getcwd()).absolute()
        own = self.workspace / ".hapax"
        self.staging = Path(environment("HAPAX_STAGING") or own / "staging").absolute()
        self.state = Path(environment("HAPAX_AGENT_STATE") or own / "agents" / name).absolute()
        self.stopping = False
        self._handlers, self._check_snapshot = {CHECK_ACTION: _be_checked}, check_snapshot
        self._concurrency, self._queue_bound = concurrency, queue_bound
        self._lock_timeout_s, self._grace_s = lock_timeout_s, grace_s
        self._cache = Cache(self.state, cache_bound, self._warn, self._drop_staging)
        self._idle = threading.Condition()  # Guards the next three.
        self._flights, self._running, self._waiting = {}, [], collections.deque()
        self._wire, self._beats = None, itertools.count(1)
        self._started, self._last_activity = time.monotonic(), _now()
        self._stats = {"executed": 0, "from_cache": 0, "failed": 0}

    def on(self, action):
        """Registers the handler of an action.

        It gets a Task and returns a payload, or a status and a payload. An exception is a failed answer, never a dead
        agent.
        """
        if not ACTION.fullmatch(action):
            raise ValueError(f"{action!r} is no dotted name")

        def register(handler):
            self._handlers[action] = handler
            return handler

        return register

    def run(self):
        """Serves commands until the input ends or a signal says stop, then ends the process with 0."""
        source, sink = _take_pipes()
        self._wire = Wire(sink, self._on_lost)
        self._watch_signals()
        try:
            self._cache.open(self._lock_timeout_s)
        except OSError as error:
            self.log("error", error)
            raise SystemExit(f"{self.state}: {error}") from None
        self._wire.send(self._heartbeat())
        threading.Thread(target=self._beat, daemon=True).start()
        for line in Lines(lambda size: os.read(source, size)):
            self._receive(line)
        self._leave()

    def log(self, level, message, **fields):
        """Sends a line for the engine's log; `level` is debug, info, warn or error."""
        if level not in LEVELS:
            raise ValueError(f"{level!r} is none of {LEVELS}")
        record = {"kind": "log", "level": level, "message": _clean(message), "timestamp": _now()}
        if fields:
            record["fields"] = _sendable(fields)
        if self._wire is None:
            print(f"{level}: {message}", file=sys.stderr)
        else:
            self._wire.send(record)

    def _warn(self, message, **fields):
        self.log("warn", message, **fields)

    def send_event(self, command, name, payload):
        """Sends an event without a status: the command goes on."""
        try:
            self._wire.send(self._event(command, name, payload))
        except ProtocolError as error:
            raise Failed("too_large", str(error)) from None

    # -- receiving

    def _receive(self, line):
        self._last_activity = _now()
        try:
            if isinstance(line, ProtocolError):
                raise line
            self._dispatch(decode(line))
        except ProtocolError as error:
            self._refuse(error.line or line, Failed("protocol", str(error)))
        except Failed as error:
            self._refuse(line, error)
        except OSError as error:
            self._refuse(line, Failed("cache", f"the result cache can't be read: {error}", retryable=True))
        except Exception as error:
            self._refuse(line, _unexpected(error))

    def _dispatch(self, message):
        kind = message.get("kind")
        if kind == "command":
            check_command(message)
            self._accept(message)
        elif kind == "ack":
            self._acknowledge(message)
        else:
            raise ProtocolError("the line is neither a command nor an ack")

    def _acknowledge(self, message):
        key = _field(message, "idempotency_key", str)
        if not KEY.fullmatch(key):
            raise ProtocolError("idempotency_key is no key")
        forget = "forget" in message and _field(message, "forget", bool)
        with self._idle:
            if key in self._flights:
                return  # It is about an earlier answer; this work isn't known to the engine yet.
        try:
            self._cache.ack(key, forget)
        except OSError as error:
            self._warn("an acknowledgement could not be written down", reason=_clean(error))

    def _refuse(self, line, error):
        """Answers a line for which nothing was done. Such an answer isn't kept: the next attempt may fare better."""
        self._stats["failed"] += 1
        self._wire.send(self._failure(_names_in(line), error))

    def key_of(self, command):
        """Under which name work is remembered: its own key, which no resending changes."""
        return command["idempotency_key"]

    def _accept(self, command):
        """A duplicate of running work waits for it, one of finished work gets its answer, and what is new is begun."""
        key = self.key_of(command)
        with self._idle:
            if self.stopping:
                return
            flight = self._flights.get(key)
            if flight:
                flight.correlations.append(command["correlation_id"])
                return
        event = self._recall(key)
        if event is None:
            with self._idle:  # Nobody has begun it meanwhile: only the thread that reads lines does.
                self._enqueue(Flight(command, key))
            return
        self._stats["from_cache"] += 1
        self._send_answer(event, command["correlation_id"])

    def _recall(self, key):
        """The answer that is kept, unless it names files that are gone.

        The engine removes staged files when it has installed and acknowledged them. Where they aren't in the workspace
        any more either, somebody undid the work, and asks for it anew.
        """
        event, is_acked = self._cache.recall(key) or (None, False)
        named = event.get("artifacts", []) if is_acked else []
        staging = self._staging_of(key)
        return event if all(_is_there(artifact, staging, self.workspace) for artifact in named) else None

    def _enqueue(self, flight):
        action = flight.command["action"]
        if action not in self._handlers:
            raise Failed("unknown_action", f"this agent doesn't know the action {_clean(action)!r}")
        if len(self._running) < self._concurrency:
            threading.Thread(target=self._work, args=(flight,), daemon=True).start()
            self._running.append(flight)
        elif len(self._waiting) < self._queue_bound:
            self._waiting.append(flight)
        else:
            raise Failed("busy", f"{self._queue_bound} commands are waiting already", retryable=True)
        self._flights[flight.key] = flight

    # -- working

    def _work(self, flight):
        while flight is not None:
            try:
                self._execute(flight)
            except BaseException as error:  # Whoever waits for this key would wait for ever.
                self._answer(flight, self._failure(flight.command, _unexpected(error)))
            flight = self._next_after(flight)

    def _next_after(self, finished):
        with self._idle:
            self._running.remove(finished)
            flight = self._waiting.popleft() if self._waiting and not self.stopping else None
            if flight:
                self._running.append(flight)
            self._idle.notify_all()
            return flight

    def _execute(self, flight):
        try:
            self._begin(flight)
        except OSError as error:
            failed = Failed("cache", f"the work could not be begun: {error}", retryable=True)
            self._answer(flight, self._failure(flight.command, failed))
            return
        self._settle(flight, self._outcome(flight))

    def _begin(self, flight):
        """From here on a crash leaves `started`, and the next attempt finds no file of this one."""
        staging = self._staging_of(flight.key)
        _remove(staging)
        staging.mkdir(parents=True)
        flight.was_cut_off = self._cache.start(flight.key)

    def _settle(self, flight, event):
        """Records first, answers second: what was answered and then forgotten would be worked on twice."""
        self._answer(flight, self._record(flight, event))

    def _record(self, flight, event):
        payload = event["payload"]
        if event["status"] == "failed" and payload["retryable"]:
            self._cache.forget(flight.key)
            return event
        try:
            self._cache.done(flight.key, event)
            return event
        except OSError as error:
            self._cache.abandon(flight.key)
            reason = Failed("cache", f"the answer could not be written down: {error}", retryable=True)
            return self._failure(flight.command, reason)

    def _answer(self, flight, event):
        if flight.task:
            flight.task.close()
        with self._idle:
            self._flights.pop(flight.key, None)
            correlations, flight.correlations = flight.correlations, []
        self._stats["failed"] += event["status"] == "failed"
        for correlation in correlations:
            self._send_answer(event, correlation)

    def _send_answer(self, event, correlation):
        self._last_activity = _now()
        fresh = {"message_id": new_message_id(), "correlation_id": correlation, "occurred_at": _now()}
        self._wire.send({**event, **fresh})

    def _outcome(self, flight):
        """Runs the handler. Whatever it does, there is an answer."""
        self._stats["executed"] += 1
        command, observed = flight.command, None
        task = flight.task = Task(self, flight, self._staging_of(flight.key))
        try:
            observed = self._observe(task)
            _check_version(observed, task.snapshot_id)
            status, payload = _result(self._handlers[task.action](task))
            event = self._event(command, f"{task.action}.completed", payload, status, observed, task.artifacts())
            return _fitting(event)
        except Failed as error:
            return self._failure(command, error, observed)
        except BaseException as error:  # A handler's sys.exit() must not end the agent either.
            self.log("error", "a handler broke", action=task.action, task_id=task.task_id, trace=traceback.format_exc())
            return self._failure(command, _unexpected(error), observed)

    def _observe(self, task):
        """The version that is worked on: what is really there if that is checked, else what the command says."""
        return snapshot_id(self.workspace) if self._check_snapshot else task.snapshot_id

    def _staging_of(self, key):
        return self.staging / key[3:]

    def _drop_staging(self, key):
        with contextlib.suppress(OSError):
            _remove(self._staging_of(key))

    # -- messages

    def _event(self, command, name, payload, status=None, observed=None, artifacts=()):
        event = {
            "kind": "event", "message_id": new_message_id(), "correlation_id": command["correlation_id"],
            "task_id": command["task_id"], "from": self.address, "event": name, "payload": payload,
            "artifacts": list(artifacts), "occurred_at": _now(),
        }
        if status:
            event["status"] = status
        if observed:
            event["observed_version"] = {"snapshot_id": observed}
        return event

    def _failure(self, command, error, observed=None):
        code, message = _clean(error.code) or "failed", _clean(error.message)
        payload = {"code": code, "message": message, "retryable": bool(error.retryable)}
        shown = [name if len(name or "") <= MAX_ID_CHARS else "" for name in (command["task_id"], observed)]
        return self._event({**command, "task_id": shown[0]}, "error", payload, "failed", shown[1])

    def _heartbeat(self):
        running = list(self._running)
        status = "stopping" if self.stopping else "busy" if running else "idle"
        beat = {
            "kind": "heartbeat", "agent": self.address, "seq": next(self._beats), "status": status, "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 3), "last_activity_at": self._last_activity,
            "stats": dict(self._stats),
        }
        task_id = running[0].command["task_id"] if running else ""
        if 0 < len(task_id) <= MAX_BEAT_TASK_CHARS:
            beat["task_id"] = task_id
        return beat

    def _beat(self):
        interval_s = _heartbeat_ms() / 1_000
        while not self.stopping:
            time.sleep(interval_s)
            self._wire.send(self._heartbeat())

    # -- leaving

    def _watch_signals(self):
        """Signals are seen by a thread of their own: the main one may be waiting for a reader that doesn't read."""
        source, sink = os.pipe()
        os.set_blocking(sink, False)
        signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
        ends = (signal.SIGTERM, signal.SIGINT)
        for number in ends:
            signal.signal(number, lambda *_: None)

        def watch():
            while os.read(source, 1)[0] not in ends:
                pass
            self.stopping = True
            self._wire.send_if_free(self._heartbeat())
            _end()

        threading.Thread(target=watch, daemon=True).start()

    def _on_lost(self):
        """Nobody reads any more: as at the end of the input, but seen by a thread that must not wait."""
        threading.Thread(target=self._leave, daemon=True).start()

    def _leave(self):
        """Begins nothing new, and gives what is running a while to end; its answer is kept for the next process."""
        self.stopping = True
        self._wire.send_if_free(self._heartbeat())
        with self._idle:
            self._idle.wait_for(lambda: not self._running, timeout=self._grace_s)
        _end()


def _end():
    """Ends the process without waiting for threads: all that counts was on the disk before it was told."""
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(0)


def _take_pipes():
    """Keeps the protocol's pipes to itself: what a handler or its children print goes to stderr; they read nothing."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, sink


def _heartbeat_ms():
    text = os.environ.get("HAPAX_HEARTBEAT_MS", "")
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) else 10_000


def _names_in(line):
    """Whom to answer: the ids in a line that may be no good message, as far as they can be made out."""
    try:
        find = json.loads(line, parse_int=float).get  # An integer may have more digits than Python converts.
    except (ValueError, AttributeError, RecursionError):
        find = functools.partial(_find_text, line)
    limits = {"correlation_id": MAX_CORRELATION_CHARS, "task_id": MAX_ID_CHARS}
    return {name: _name(find(name), limit) for name, limit in limits.items()}


def _find_text(line, name):
    """The first field of that name in a line that is no JSON, because it is cut off or broken somewhere."""
    found = re.search(rb'"%s"\s*:\s*"([^"\\]*)"' % name.encode(), line)
    return found and found.group(1).decode("utf-8", "surrogateescape")


def _name(value, limit):
    is_name = isinstance(value, str) and len(value) <= limit and value == _clean(value) and "\n" not in value
    return value if is_name else ""


def _unexpected(error):
    """What nobody foresaw may pass. The work may be done again, as it may after a crash."""
    return Failed("exception", f"{type(error).__name__}: {error}", retryable=True)


def _check_version(observed, pinned):
    if observed != pinned:
        raise Failed("version_mismatch", f"the workspace is {observed}, not {pinned}", retryable=True)


def _sendable(fields):
    try:
        if len(canonical_json(fields)) <= MAX_TEXT_CHARS * 8:
            return fields
    except CanonicalError:
        pass
    return {name: _clean(repr(value)) for name, value in itertools.islice(fields.items(), 8)}


def _result(returned):
    """What a handler returned, as a status and a payload."""
    status, payload = returned if isinstance(returned, tuple) else ("success", returned)
    payload = {} if payload is None else payload
    if not isinstance(payload, dict) or not isinstance(status, str) or not STATUS.fullmatch(status):
        raise TypeError("a handler returns a payload (a dict), or a status (lower-case text) and a payload")
    if status == "failed":
        raise Failed(payload["code"], payload["message"], payload.get("retryable", False))
    questions = payload.get("questions")
    is_asked = isinstance(questions, list) and questions and all(isinstance(question, str) for question in questions)
    if status == "clarification" and not is_asked:
        raise TypeError("a clarification has `questions`, a list of at least one text")
    return status, payload


def _fitting(event):
    """An answer that can be sent as a line, now and under any other correlation id."""
    size = len(_utf8(canonical_json(event))) + ANSWER_ROOM
    if size > LINE_LIMIT:
        raise Failed("too_large", f"the answer has more than {LINE_LIMIT - ANSWER_ROOM} bytes; put it into an artifact")
    return event

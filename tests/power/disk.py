"""A model of the disk: what a power cut at a point of a trace may leave.

Fed with the events of a trace in order. Every file and folder knows its durable content and the
changes since its last fsync; ``image`` chooses among those, by policy:

- ``all``: everything is kept (a control: equal to what lies on the real disk).
- ``drop``: nothing that was not synced. Names persist in order, as on a journaling file system.
- ``prefix``: of each file, the unsynced writes up to a random one.
- ``torn``: the same, and the last one kept is cut in the middle, at a multiple of 512 bytes.
- ``zeros``: every file has its size; a random subset of the unsynced blocks of 512 bytes or 4 KiB
  is not there: zeros, or what was durable before.
- ``names``: of each folder, nothing, a random prefix, or a random subset, of the creates, renames
  and unlinks since its last fsync; the data as ``drop``, ``prefix`` or ``all`` have it. A subset
  keeps the name under which a file was made that was itself synced since: between the rename of
  CURRENT and the fsync of the folder RocksDB relies on that, and ext4, XFS and Btrfs do it.

A sync covers what was there when it began. ``sync_file_range`` promises nothing.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

OPEN, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, LINK, UNLINK, MKDIR, RMDIR, MARK = range(1, 12)
UNSUPPORTED, EXTEND = 12, 13
CONFIG, DIED, CUT, ENTRY = range(20, 24)  # what the driver adds between the lives
POLICIES = ("drop", "prefix", "torn", "zeros", "names")
SECTOR = 512
_HEAD = struct.Struct("<B3xIIIQ")

Event = tuple[int, int, int, int, bytes]  # op, life, handle, number, data
Image = dict[str, "bytes | None"]  # None: a folder


def parse(raw: bytes) -> Iterator[Event]:
    """The events of a trace."""
    at = 0
    while at + _HEAD.size <= len(raw):
        op, life, handle, size, number = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        yield op, life, handle, number, raw[at : at + size]
        at += size


def pack(op: int, data: bytes = b"", number: int = 0) -> bytes:
    """An event that is not the recorder's."""
    return _HEAD.pack(op, 0, 0, len(data), number) + data


def pack_image(image: Image) -> bytes:
    """A power cut, and what it left: the next life starts from there."""
    entries = [
        pack(ENTRY, path.encode() + b"\0" + (data or b""), data is None)
        for path, data in image.items()
    ]
    return b"".join([pack(CUT), *entries])


class UnsupportedError(Exception):
    """The trace holds what the model cannot follow."""


@dataclass(slots=True)
class File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, int, int, bytes]] = field(default_factory=list)  # at, op, number, data
    synced: int = 0  # when the last sync that has ended began

    def sync(self, begun: int) -> None:
        """What was written before ``begun`` is durable."""
        self.synced = max(self.synced, begun)
        done = [one for one in self.pending if one[0] < begun]
        self.pending = self.pending[len(done) :]
        for one in done:
            change(self.durable, one)


def change(content: bytearray, one: tuple[int, int, int, bytes]) -> None:
    """Apply a write, a truncate or an extension."""
    _, op, number, data = one
    if op == WRITE:
        if len(content) < number:
            content.extend(bytes(number - len(content)))
        content[number : number + len(data)] = data
    elif len(content) < number:
        content.extend(bytes(number - len(content)))
    elif op == TRUNCATE:
        del content[number:]


class Folder:
    """``pending``: (at, name, node or None, old name of a rename)."""

    __slots__ = ("durable", "now", "pending")

    def __init__(self) -> None:
        self.durable: dict[str, Node] = {}
        self.now: dict[str, Node] = {}
        self.pending: list[tuple[int, str, Node | None, str]] = []

    def do(self, at: int, name: str, node: Node | None, old: str = "") -> None:
        self.pending.append((at, name, node, old))
        bind(self.now, self.pending[-1])

    def sync(self, begun: int) -> None:
        """Names given before ``begun`` are durable."""
        done = [one for one in self.pending if one[0] < begun]
        self.pending = self.pending[len(done) :]
        for one in done:
            bind(self.durable, one)


Node = File | Folder


def bind(names: dict[str, Node], one: tuple[int, str, Node | None, str]) -> None:
    _, name, node, old = one
    if old:
        names.pop(old, None)
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class Disk:
    """See the module's docstring. ``at`` counts the events."""

    def __init__(self) -> None:
        self.root = Folder()
        self.at = 0
        self._open: dict[tuple[int, int], Node] = {}
        self._begun: dict[tuple[int, int], list[int]] = {}

    def _lay(self, path: str, data: bytes | None) -> None:
        """This is there, and durable."""
        parent, name = self._parent(path)
        node: Node = Folder() if data is None else File(bytearray(data))
        parent.now[name] = parent.durable[name] = node

    def _find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in filter(None, path.split("/")):
            node = node.now.get(name) if isinstance(node, Folder) else None
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        names = [name for name in path.split("/") if name]
        parent = self._find("/".join(names[:-1]))
        if not isinstance(parent, Folder) or ".." in names or "." in names:
            raise UnsupportedError(f"no folder for {path!r}")
        return parent, names[-1]

    def feed(self, event: Event) -> None:
        """One event of the trace."""
        op, life, handle, number, data = event
        self.at += 1
        if op == OPEN:
            self._opened((life, handle), number, data.decode())
        elif op in {WRITE, TRUNCATE, EXTEND}:
            node = self._open[life, handle]
            if isinstance(node, File):
                node.pending.append((self.at, op, number, data))
        elif op == SYNC_BEGIN:
            self._begun.setdefault((life, handle), []).append(self.at)
        elif op == SYNC_END:
            begun = self._begun[life, handle].pop(0)
            self._open[life, handle].sync(begun)
        elif op == UNSUPPORTED:
            raise UnsupportedError(data.decode())
        elif op == CUT:
            self.root = Folder()
        elif op == ENTRY:
            path, _, content = data.partition(b"\0")
            self._lay(path.decode(), None if number else content)
        elif op in {RENAME, LINK, UNLINK, MKDIR, RMDIR}:
            self._named(op, data.decode())

    def _opened(self, key: tuple[int, int], flags: int, path: str) -> None:
        node = self._find(path)
        if node is None:
            if not flags & os.O_CREAT:
                raise UnsupportedError(f"{path!r} was opened and never made")
            node = File()
            parent, name = self._parent(path)
            parent.do(self.at, name, node)
        elif flags & os.O_TRUNC and isinstance(node, File):
            node.pending.append((self.at, TRUNCATE, 0, b""))
        self._open[key] = node

    def _named(self, op: int, text: str) -> None:
        old, _, new = text.partition("\0")
        parent, name = self._parent(old)
        if op == MKDIR:
            parent.do(self.at, name, Folder())
        elif op in {UNLINK, RMDIR}:
            node = parent.now[name]
            if op == RMDIR and isinstance(node, Folder) and node.now:
                raise UnsupportedError(f"{old!r} is not empty: {sorted(node.now)}")
            parent.do(self.at, name, None)
        else:
            other, to = self._parent(new)
            node = parent.now[name]
            if op == RENAME and other is not parent:
                raise UnsupportedError(f"{old!r} moves to another folder, {new!r}")
            other.do(self.at, to, node, name if op == RENAME else "")

    # -- images ------------------------------------------------------------------------------

    def image(self, policy: str, draw: random.Random) -> Image:
        """What a cut here leaves, by path, folders before what is in them."""
        data = policy
        if policy == "names":
            data = draw.choice(("drop", "prefix", "all"))
        found: Image = {}
        done: dict[int, bytes] = {}  # hard links share what they hold
        todo: list[tuple[str, Folder]] = [("", self.root)]
        while todo:
            path, folder = todo.pop()
            names = _entries(folder, draw) if policy == "names" else folder.now
            for name, node in sorted(names.items()):
                below = f"{path}/{name}" if path else name
                if isinstance(node, Folder):
                    found[below] = None
                    todo.append((below, node))
                elif id(node) in done:
                    found[below] = done[id(node)]
                else:
                    found[below] = done[id(node)] = _content(node, data, draw)
        return found


def _entries(folder: Folder, draw: random.Random) -> dict[str, Node]:
    names = dict(folder.durable)
    pending = folder.pending
    how = draw.randrange(3)
    if how == 1:
        pending = pending[: draw.randint(0, len(pending))]
    for one in pending:
        at, _, node, old = one
        is_synced = isinstance(node, File) and not old and node.synced > at
        if how == 1 or (how == 2 and (is_synced or draw.random() < 0.5)):
            bind(names, one)
    return names


def _content(file: File, policy: str, draw: random.Random) -> bytes:
    if not file.pending or policy == "drop":
        return bytes(file.durable)
    content = bytearray(file.durable)
    pending = file.pending
    if policy in {"prefix", "torn"}:
        pending = pending[: draw.randint(0, len(pending))]
    if policy == "torn" and pending:
        pending = [*pending[:-1], _torn(pending[-1], draw)]
    for one in pending:
        change(content, one)
    if policy == "zeros":
        _punch(content, file, draw)
    return bytes(content)


def _torn(one: tuple[int, int, int, bytes], draw: random.Random) -> tuple[int, int, int, bytes]:
    """A write of which only whole sectors, from its start, have reached the disk."""
    at, op, number, data = one
    if op != WRITE:
        return one
    first = number // SECTOR + 1
    cuts = range(first * SECTOR - number, len(data), SECTOR)
    return at, op, number, data[: draw.choice(cuts) if cuts else 0]


def _punch(content: bytearray, file: File, draw: random.Random) -> None:
    """Some blocks never reached the disk: they hold what was durable, or zeros."""
    size = draw.choice((SECTOR, 4096))
    lost = draw.choice((0.1, 0.5, 0.9))
    touched = {
        block
        for _, op, number, data in file.pending
        if op == WRITE
        for block in range(number // size, (number + len(data) - 1) // size + 1)
    }
    for block in sorted(touched):
        start, end = block * size, min((block + 1) * size, len(content))
        if start < end and draw.random() < lost:
            content[start:end] = bytes(file.durable[start:end]).ljust(end - start, b"\0")


def lay_out(image: Image, folder: str) -> None:
    """Write an image into a folder that does not exist yet."""
    os.mkdir(folder, 0o700)
    for path, data in image.items():
        full = f"{folder}/{path}"
        if data is None:
            os.mkdir(full, 0o700)
            continue
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(fd, data)
        os.close(fd)


def read_back(folder: str) -> Image:
    """A folder as an image, without RocksDB's own logs."""
    found: Image = {}
    for path, folders, files in os.walk(folder):
        below = os.path.relpath(path, folder)
        prefix = "" if below == "." else f"{below}/"
        found.update((prefix + name, None) for name in folders)
        for name in files:
            if not name.startswith("LOG"):
                with open(f"{path}/{name}", "rb") as file:
                    found[prefix + name] = file.read()
    return found

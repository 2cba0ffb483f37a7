"""The folder of a store: its names, and what it must be before anything is opened in it.

::

    <path>/               0700, ours, no symlink
      lock                flock'd while the store is open (lockfile.py)
      shard0.lock         the same, of a shard that a process has without the rest (store_lock.py)
      secrets             0600: what dedup hashes are keyed with, for those who stage (secret.py)
      ballast             0600: given up by an open that is short of space (ballast.py)
      shard0/ …           one RocksDB each
      watermark0 …        what of shard 0 is durable (watermark.py)
      bodies0/ …          its large payloads, if it has any (segments/bodies)
      import-….json       how far an import has come; may be removed
      served.json         where it is served, while it is (served_note.py)
      journals/tasks/ …   a lifecycle journal, if it has one
      snapshots/ …        of all shards, to be read by others (bulk/snapshots.py)
      inbox/ …            loads that were staged outside the engine (bulk/inbox.py)
      shard0.copy/        a point-in-time copy under examination; worthless after a crash
      shard0.before/      the shard before the open that is going on; a crash puts it back
      shard0.fresh/       a new shard that a salvage is filling; worthless after a crash
      shard0.accepted/    the same, accepted, on its way to become shard0/ (recovery.py)
      shard0.refused-7/   the original it replaced, kept for the operator

Everything here is decided with ``lstat`` and a listing, before a single file is created: RocksDB
would create a store wherever it is pointed at, so a mistyped path has to be refused earlier. A
folder that holds anything else but no shard is somebody else's.

A new name is durable only once its folder is fsynced; that is what ``fsync_dir`` is for.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...errors import StorePathError
from ..values import spelled
from .disk_errors import path_error

__all__ = [
    "JOURNALS",
    "NOT_COPIED",
    "SHARDS_MAX",
    "Layout",
    "absolute_path",
    "accepted_path",
    "ballast_path",
    "before_path",
    "bodies_path",
    "check_new_names",
    "check_root",
    "clone_folder",
    "copy_path",
    "fresh_path",
    "fsync_dir",
    "fsync_file",
    "has_remains",
    "inbox_path",
    "is_rocksdb",
    "journal_path",
    "list_layout",
    "lock_path",
    "make_root",
    "normal_path",
    "only_journal",
    "refused_path",
    "secrets_path",
    "shard_lock_path",
    "shard_path",
    "snapshots_path",
    "watermark_path",
]

SHARDS_MAX = 4096  # as many as there are slots
JOURNALS = "journals"
SNAPSHOTS = "snapshots"
# Logs of RocksDB's own and its lock: of a folder's history, not of its state.
NOT_COPIED = ("LOCK", "LOG")
INBOX = "inbox"
SECRETS = "secrets"
BALLAST = "ballast"
_FILES = ("lock", SECRETS, f"{SECRETS}.tmp", BALLAST)

_NAME = re.compile(
    r"(shard|watermark|bodies)(0|[1-9][0-9]{0,3})(\.copy|\.fresh|\.before|\.accepted|\.refused-[0-9.]+|\.tmp|\.lock)?"
)
# A file system's own folder at a mount point says nothing about who owns the rest; nor do notes.
_IGNORED = frozenset({"lost+found", "served.json", "replica.json"})
# Manifests of copies, whose files may be those of a live store under other names.
_COPIES = {
    "checkpoint.json": "a checkpoint, which stays as it is: make a store of it in a folder of its "
    "own with lodeq.restore(), or by `lodeq restore`",
    "snapshot.json": "a snapshot, which is read where it lies (`lodeq snapshots`): open the store "
    "that it was taken of, or restore a checkpoint",
}
# Line breaks, what moves a terminal's cursor, and what turns the direction of a text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_OURS = ("unix", "tcp", "http", "https", "lodeq")
# One slash: a ``Path`` has dropped the other. With another scheme it may be a folder's name.
_ADDRESS = re.compile(
    r"(unix|tcp|https?|lodeq|file|rediss?|amqps?|postgres|postgresql|mysql|sqlite|s3a?|hdfs|dbfs):/"
    r"|([a-z][a-z0-9+.-]+)://",
    re.IGNORECASE,
)


class Layout(NamedTuple):
    """Contents of a store's folder. ``shards``: indexes of ``shard<i>``, ascending.

    ``copies``: of what a crash has made worthless, copies and shards that were being filled.
    ``before``: of shards in the middle of an open, as they were. ``locks``: of single shards.
    """

    shards: tuple[int, ...]
    copies: tuple[int, ...]
    accepted: tuple[int, ...]
    watermarks: tuple[int, ...]
    bodies: tuple[int, ...]
    before: tuple[int, ...]
    locks: tuple[int, ...]

    def only(self, hosts: Callable[[int], bool] | None) -> Layout:
        """The part of it that belongs to these shards; None: all of it."""
        if hosts is None:
            return self
        return Layout(*(tuple(filter(hosts, group)) for group in self))


def _check_no_address(text: str) -> None:
    """Check that a path is no URL: relative, it would name a folder that nobody means.

    Raises:
        StorePathError: it is one; the text names what to call instead.
    """
    found = _ADDRESS.match(text)
    if found is None:
        return
    scheme = (found[1] or found[2]).lower()
    rest = text[found.end() :].lstrip("/")
    for_a_folder = f"for a folder of that name write {'./' + text!r}"
    if scheme == "file":
        raise StorePathError(
            f"{text!r} is a URL, not a folder: write {'/' + rest!r}; {for_a_folder}"
        )
    slashes = "/" if scheme == "unix" else ""
    url = text if "://" in text else f"{text[: len(scheme)]}://{slashes}{rest}"
    if scheme in _OURS:
        raise StorePathError(
            f"{url!r} is the address of a service, not a folder: lodeq.connect({url!r}) "
            f"connects to it; {for_a_folder}"
        )
    raise StorePathError(
        f"{url!r} is an address, not a folder, and lodeq keeps its tasks in a folder of this "
        f"machine: lodeq.open('var/jobs'); {for_a_folder}"
    )


def normal_path(path: str | os.PathLike[str]) -> str:
    """Absolute and without a trailing slash (``lstat`` of ``link/`` would follow the link)."""
    try:
        text = os.fsdecode(path)
        if not text or "\0" in text:
            raise ValueError("empty, or with a NUL in it")
        _check_no_address(text)
        whole = os.path.abspath(text)
        whole.encode()  # RocksDB takes its path as UTF-8
    except (TypeError, ValueError, OSError) as exc:
        raise StorePathError(f"not a path for a store: {spelled(path)} ({exc})") from exc
    return whole


def absolute_path(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The path as it is meant now, for whoever uses it later, when the process may be elsewhere.

    One that cannot be a store's stays as it is: whoever uses it refuses it.
    """
    try:
        return normal_path(path)
    except StorePathError:
        return path


def lock_path(root: str) -> str:
    """Where the lock lives."""
    return os.path.join(root, "lock")


def shard_lock_path(root: str, shard: int) -> str:
    """Where the lock of one shard lives, for a process that has it without the rest."""
    return os.path.join(root, f"shard{shard}.lock")


def secrets_path(root: str) -> str:
    """Path of the key of dedup hashes, for those who stage loads."""
    return os.path.join(root, SECRETS)


def ballast_path(root: str) -> str:
    """The file that an open gives up where space is short."""
    return os.path.join(root, BALLAST)


def shard_path(root: str, shard: int) -> str:
    """The RocksDB folder of one shard."""
    return os.path.join(root, f"shard{shard}")


def watermark_path(root: str, shard: int) -> str:
    """The watermark of one shard."""
    return os.path.join(root, f"watermark{shard}")


def bodies_path(root: str, shard: int) -> str:
    """The body files of one shard."""
    return os.path.join(root, f"bodies{shard}")


def journal_path(root: str, name: str) -> str:
    """The lifecycle journal of that name."""
    return os.path.join(root, JOURNALS, name)


def only_journal(root: str) -> str | None:
    """The name of a store's lifecycle journal, if it has one: what is done to it belongs there."""
    try:
        names = os.listdir(os.path.join(root, JOURNALS))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return names[0] if len(names) == 1 else None


def snapshots_path(root: str) -> str:
    """Where snapshots lie."""
    return os.path.join(root, SNAPSHOTS)


def inbox_path(root: str) -> str:
    """Where loads are staged, and taken from."""
    return os.path.join(root, INBOX)


def copy_path(root: str, shard: int) -> str:
    """A point-in-time copy that has not been accepted yet."""
    return os.path.join(root, f"shard{shard}.copy")


def fresh_path(root: str, shard: int) -> str:
    """A new shard that is being filled with what can be read of a damaged one."""
    return os.path.join(root, f"shard{shard}.fresh")


def before_path(root: str, shard: int) -> str:
    """The shard as it was before the open that is going on."""
    return os.path.join(root, f"shard{shard}.before")


def accepted_path(root: str, shard: int) -> str:
    """A point-in-time copy that will replace the shard."""
    return os.path.join(root, f"shard{shard}.accepted")


def refused_path(root: str, shard: int, incarnation: int) -> str:
    """A free name for the original that a copy replaced."""
    first = os.path.join(root, f"shard{shard}.refused-{incarnation}")
    name, again = first, 0
    while os.path.lexists(name):  # a crash right after a swap leaves the incarnation as it was
        again += 1
        name = f"{first}.{again}"
    return name


def fsync_file(path: str) -> None:
    """Make what a file holds durable."""
    _fsync_and_close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))


def fsync_dir(path: str) -> None:
    """Make the names in a folder durable."""
    _fsync_and_close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY))


def _fsync_and_close(fd: int) -> None:
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def clone_folder(
    source: str, target: str, *, links: tuple[str, ...], skip: tuple[str, ...]
) -> None:
    """A durable copy of the files of a folder at ``target``, which must not exist.

    Names that start or end with one of ``links`` are hard-linked, where the file system can; names
    that start with one of ``skip`` are left out; everything else is copied.

    Args:
        source: folder whose files are copied.
        target: folder to be made.
        links: starts or ends of names to be hard-linked.
        skip: starts of names to be left out.
    """
    os.mkdir(target, 0o700)
    for name in sorted(os.listdir(source)):
        path, twin = os.path.join(source, name), os.path.join(target, name)
        if name.startswith(skip) or not stat.S_ISREG(os.lstat(path).st_mode):
            continue
        if name.startswith(links) or name.endswith(links):
            try:
                os.link(path, twin, follow_symlinks=False)
                continue
            except OSError:
                pass  # no hard links here: a copy does as well
        with open(path, "rb") as reader, open(twin, "xb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
            writer.flush()
            os.fsync(writer.fileno())
    fsync_dir(target)
    fsync_dir(os.path.dirname(target))


def is_rocksdb(path: str) -> bool:
    """Whether a RocksDB has been created there (``CURRENT`` is the last file it makes)."""
    return os.path.isfile(os.path.join(path, "CURRENT"))


def has_remains(path: str) -> bool:
    """Whether rows lie in a shard's folder, with or without what says how to read them."""
    try:
        with os.scandir(path) as entries:
            return any(
                entry.name.endswith(".sst")
                or (entry.name.endswith(".log") and entry.stat(follow_symlinks=False).st_size > 0)
                for entry in entries
            )
    except (FileNotFoundError, NotADirectoryError):
        return False


def check_root(root: str) -> bool:
    """Whether the folder exists; ``StorePathError`` if it is there and cannot be a store.

    Creates nothing. The names inside are looked at by ``list_layout``.
    """
    try:
        info = os.lstat(root)
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise path_error(exc, f"{root}: {exc.strerror}", "choose another path") from exc
    if stat.S_ISLNK(info.st_mode):
        raise StorePathError(f"{root} is a symbolic link: open the folder it points to")
    if not stat.S_ISDIR(info.st_mode):
        raise StorePathError(f"{root} is not a folder: choose another path")
    if info.st_uid != os.geteuid():
        raise StorePathError(
            f"{root} belongs to user {info.st_uid}, this process runs as {os.geteuid()}: "
            "run as its owner, or change the owner"
        )
    if info.st_mode & 0o022:
        raise StorePathError(
            f"{root} can be written by others (mode {stat.S_IMODE(info.st_mode):o}): chmod 700 it"
        )
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise StorePathError(f"{root} is not readable and writable: check its mode and its mount")
    return True


def list_layout(root: str) -> Layout:
    """Contents of a store's folder; ``StorePathError`` if it is a folder of something else.

    ``shard0`` makes a store, whatever else lies there but the manifest of a copy that nobody has
    opened; without it every name must be one of ours (what a crash during creation leaves). Names
    of ours must be real folders and files, and belong to us; so must what a shard holds be real.
    """
    found: dict[str, list[int]] = {
        "shard": [],
        ".copy": [],
        ".accepted": [],
        "watermark": [],
        "bodies": [],
        ".before": [],
        ".lock": [],
    }
    strange: list[str] = []
    entries = _entries(root)  # first: whatever is wrong with the root is reported as that
    try:
        is_open = bool(os.lstat(root).st_mode & 0o011)
    except OSError as exc:
        raise path_error(exc, f"{root} cannot be listed: {exc.strerror}") from exc
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match is None:
            if entry.name in (*_FILES, JOURNALS, SNAPSHOTS, INBOX):
                _check_entry(entry, folder=entry.name not in _FILES, is_open=is_open)
            elif entry.name not in _IGNORED:
                strange.append(entry.name)
            continue
        kind, index, suffix = match[1], int(match[2]), match[3]
        is_folder = kind != "watermark" and suffix != ".lock"
        _check_entry(entry, folder=is_folder, is_open=is_open)
        group = found.get(".copy" if suffix == ".fresh" else suffix if suffix else kind)
        if group is not None:
            group.append(index)
    for name in sorted(_COPIES.keys() & strange):
        if not found["watermark"]:  # nobody has ever opened it
            raise StorePathError(f"{root} is {_COPIES[name]}")
    if strange and not any(0 in found[kind] for kind in ("shard", ".accepted", ".before")):
        raise StorePathError(
            f"{root} holds {sorted(strange)[0]!r} and no lodeq store: choose an empty folder"
        )
    return Layout(*(tuple(sorted(group)) for group in found.values()))


def _entries(root: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(root) as entries:
            return list(entries)
    except OSError as exc:
        raise path_error(exc, f"{root} cannot be listed: {exc.strerror}") from exc


def _check_entry(entry: os.DirEntry[str], *, folder: bool, is_open: bool) -> None:
    """A link among our names could lead a recovery to move or remove what is not ours.

    One inside a shard is followed by RocksDB, and rocksdict would write through it. The lock and
    the watermarks are written in place: a hard link elsewhere would change with them.
    """
    right = entry.is_dir(follow_symlinks=False) if folder else entry.is_file(follow_symlinks=False)
    if not right:
        raise StorePathError(f"{entry.path} is not a {'folder' if folder else 'plain file'}")
    try:
        info = entry.stat(follow_symlinks=False)
        names = _strange_in(entry.path) if folder else []
    except FileNotFoundError:
        return  # whoever has the store open has moved or removed it; the lock will show it
    except OSError as exc:
        text = f"{entry.path} cannot be looked at: {exc.strerror}"
        raise path_error(exc, text) from exc
    _check_owner(entry.path, info, is_open=is_open)
    if names:
        raise StorePathError(f"{names[0]} is neither a plain file nor a folder: remove it")
    if not folder and info.st_nlink > 1:
        raise StorePathError(
            f"{entry.path} has another name elsewhere, a hard link: put a copy in its place"
        )


def _strange_in(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [
            entry.path
            for entry in entries
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
        ]


def _check_owner(path: str, info: os.stat_result, *, is_open: bool) -> None:
    """``is_open``: others get through the root, so the mode of what is in it counts."""
    if info.st_uid != os.geteuid():
        raise StorePathError(
            f"{path} belongs to user {info.st_uid}, this process runs as {os.geteuid()}: "
            "change the owner of the whole store"
        )
    if is_open and info.st_mode & 0o022:
        raise StorePathError(f"{path} can be written by others: chmod 700 the folder of the store")


def check_new_names(path: str, made: Iterable[str]) -> None:
    """Raise ``StorePathError`` where a name that is made for ``path`` would break a line."""
    if any(_CONTROL.search(os.path.basename(one)) for one in made):
        raise StorePathError(f"{path!a}: a line break or control character is in the name")


def make_root(root: str) -> None:
    """Create the folder, 0700, and what leads to it; durable on return."""
    missing = [root]
    while not os.path.isdir(parent := os.path.dirname(missing[-1])):
        missing.append(parent)
    check_new_names(root, missing)
    try:
        for path in reversed(missing):
            try:
                os.mkdir(path, 0o700 if path == root else 0o777)
            except FileExistsError:
                continue  # another opener was quicker; the lock decides between the two
            fsync_dir(os.path.dirname(path))
    except OSError as exc:
        text = f"{root} cannot be created: {exc.strerror} ({exc.filename})"
        raise path_error(exc, text) from exc

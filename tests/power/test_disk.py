"""The model of the disk: what each policy may leave, and never leaves."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from power.disk import (
    CUT,
    EXTEND,
    LINK,
    MKDIR,
    OPEN,
    POLICIES,
    RENAME,
    SYNC_BEGIN,
    SYNC_END,
    TRUNCATE,
    UNLINK,
    UNSUPPORTED,
    WRITE,
    Disk,
    UnsupportedError,
    lay_out,
    pack,
    pack_image,
    parse,
    read_back,
)

DRAWS = 60


class Script:
    """Writes events as a process would cause them."""

    def __init__(self) -> None:
        self.disk = Disk()
        self._handles: dict[str, int] = {}

    def do(self, op: int, path: str = "", data: bytes = b"", number: int = 0) -> Script:
        self.disk.feed((op, 0, self._handles.get(path, 0), number, data))
        return self

    def open(self, path: str, flags: int = os.O_CREAT) -> Script:
        self._handles[path] = len(self._handles) + 1
        return self.do(OPEN, path, path.encode(), flags)

    def write(self, path: str, data: bytes, at: int = 0) -> Script:
        return self.do(WRITE, path, data, at)

    def sync(self, path: str) -> Script:
        return self.do(SYNC_BEGIN, path).do(SYNC_END, path)

    def name(self, op: int, *paths: str) -> Script:
        return self.do(op, data="\0".join(paths).encode())

    def images(self, policy: str) -> list[dict]:
        return [self.disk.image(policy, random.Random(seed)) for seed in range(DRAWS)]


def contents(images: list[dict], path: str) -> set[bytes | None]:
    return {image.get(path) for image in images}


def test_drop_keeps_what_was_synced_and_nothing_else() -> None:
    script = Script().open("f").write("f", b"old").sync("f")
    script.write("f", b"new", 1).write("f", b"x", 9)
    assert contents(script.images("drop"), "f") == {b"old"}
    assert contents(script.images("all"), "f") == {b"onew\0\0\0\0\0x"}


def test_a_sync_covers_what_was_there_when_it_began() -> None:
    script = Script().open("f").write("f", b"1")
    script.do(SYNC_BEGIN, "f").write("f", b"2", 1)
    assert contents(script.images("drop"), "f") == {b""}
    script.do(SYNC_END, "f")
    assert contents(script.images("drop"), "f") == {b"1"}


def test_of_two_syncs_at_once_the_first_to_end_proves_what_the_first_to_begin_covers() -> None:
    script = Script().open("f").write("f", b"1")
    script.do(SYNC_BEGIN, "f").write("f", b"2", 1).do(SYNC_BEGIN, "f").do(SYNC_END, "f")
    assert contents(script.images("drop"), "f") == {b"1"}


def test_prefix_keeps_the_writes_of_each_file_up_to_one() -> None:
    script = Script().open("f").open("g")
    for i in range(3):
        script.write("f", b"%d" % i, i).write("g", b"%d" % i, i)
    images = script.images("prefix")
    assert contents(images, "f") == contents(images, "g") == {b"", b"0", b"01", b"012"}
    assert any(len(image["f"]) < len(image["g"]) for image in images)


def test_torn_cuts_the_last_write_at_a_sector() -> None:
    script = Script().open("f").write("f", b"a" * 100).sync("f").write("f", b"b" * 2000, 100)
    sizes = {len(image["f"]) for image in script.images("torn")}
    assert sizes == {100, 512, 1024, 1536, 2048}


def test_zeros_leaves_holes_of_whole_blocks_and_no_synced_byte_changes() -> None:
    script = Script().open("f").write("f", b"a" * 700).sync("f").write("f", b"b" * 20_000, 700)
    seen = contents(script.images("zeros"), "f")
    assert len(seen) > 10
    for content in seen:
        assert len(content) == 20_700
        assert content[:700] == b"a" * 700
        for start in range(1024, 20_480, 512):
            assert content[start : start + 512] in {bytes(512), b"b" * 512}
    assert any(content[4096:4608] == bytes(512) for content in seen)


def test_names_that_were_not_synced_come_and_go() -> None:
    script = Script().open("", 0).name(MKDIR, "d").open("d", 0).open("d/a").write("d/a", b"1")
    script.sync("d/a").sync("").sync("d")
    script.open("d/b").name(RENAME, "d/b", "d/a").name(LINK, "d/a", "d/c")
    images = script.images("names")
    assert contents(images, "d/a") == {b"1", b""}
    assert contents(images, "d/c") == {None, b""}
    assert contents(script.images("drop"), "d/a") == {b""}


def test_a_folder_that_was_not_synced_in_its_parent_goes_with_all_that_is_in_it() -> None:
    script = Script().name(MKDIR, "d").open("d", 0).open("d/a").sync("d/a").sync("d")
    assert any("d" not in image and "d/a" not in image for image in script.images("names"))
    assert all("d/a" in image for image in script.images("drop"))


def test_a_subset_of_names_keeps_those_of_synced_files_but_losing_all_does_not() -> None:
    script = Script().open("", 0).open("old").sync("old").sync("")
    script.open("new").open("tmp").sync("new").name(RENAME, "tmp", "old")
    images = [set(image) for image in script.images("names")]
    assert {"old"} in images  # nothing is kept
    assert {"old", "new"} in images
    assert {"old", "tmp"} not in images


def test_truncate_and_extend() -> None:
    script = Script().open("f").write("f", b"abc").sync("f")
    script.do(TRUNCATE, "f", number=1).do(EXTEND, "f", number=2)
    assert contents(script.images("prefix"), "f") == {b"abc", b"a", b"a\0"}
    script.open("f", os.O_TRUNC)
    assert contents(script.images("all"), "f") == {b""}


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_synced_is_in_every_image(policy: str) -> None:
    script = Script().open("", 0).open("f").write("f", b"x" * 5000).sync("f").sync("")
    assert contents(script.images(policy), "f") == {b"x" * 5000}


def test_what_cannot_be_followed_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="mmap"):
        Script().do(UNSUPPORTED, data=b"mmap")
    with pytest.raises(UnsupportedError, match="moves"):
        Script().name(MKDIR, "d").open("f").name(RENAME, "f", "d/f")


def test_an_image_goes_through_a_trace_and_a_folder(tmp_path: Path) -> None:
    image = {"d": None, "d/f": b"\0" * 9, "g": b""}
    disk = Disk()
    for event in parse(pack_image(image)):
        disk.feed(event)
    assert disk.image("drop", random.Random(0)) == image
    assert disk.image("names", random.Random(0)) == image
    lay_out(image, str(tmp_path / "made"))
    assert read_back(str(tmp_path / "made")) == image


def test_a_record_cut_off_is_no_event() -> None:
    whole = pack(UNLINK, b"abc")
    assert [event[4] for event in parse(whole + whole[:10])] == [b"abc"]
    assert struct.calcsize("<B3xIIIQ") == len(pack(CUT))

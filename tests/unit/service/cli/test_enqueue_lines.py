"""Lines of stdin: gathered, numbered, parsed, and read beside the loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from lodeq.service.cli import enqueue_lines
from lodeq.service.cli.enqueue_lines import chunks_of, in_thread, lines_of


def reader(*parts: bytes) -> Callable[[], bytes]:
    left = iter([*parts, b""])
    return lambda: next(left)


def test_lines_are_gathered_while_more_comes() -> None:
    (lines,) = lines_of(reader(b"a\nb", b"c\n\n", b"d"), lambda: True)
    assert lines == [(1, b"a"), (2, b"bc"), (3, b""), (4, b"d")]


def test_what_is_there_is_given_once_nothing_more_comes() -> None:
    quiet = iter([True, False, False])
    found = lines_of(reader(b"a\n", b"b\nc", b"d\n"), lambda: next(quiet))
    assert list(found) == [[(1, b"a"), (2, b"b")], [(3, b"cd")]]


def test_half_a_line_is_not_given() -> None:
    found = lines_of(reader(b"a", b"b\n"), lambda: False)
    assert list(found) == [[(1, b"ab")]]


@pytest.mark.parametrize("end", [b"", b"\n", b"\nc\n"])
def test_a_line_above_the_limit_ends_the_input(monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr(enqueue_lines, "INPUT_BYTES_MAX", 4)
    found = lines_of(reader(b"a\nbbbb\n", b"b" * 4, b"b" + end), lambda: True)
    assert list(found) == [[(1, b"a"), (2, b"bbbb"), (3, None)]]


def test_a_chunk_is_bounded() -> None:
    found = lines_of(reader(b"x\n" * 2500), lambda: True)
    assert [len(lines) for lines in found] == [1000, 1000, 500]


def test_the_good_ones_come_before_the_bad_one() -> None:
    found = chunks_of(iter([[(1, b"1\r"), (2, b""), (3, b"{"), (4, b"4")]]), parse=True)
    (chunk,) = found
    assert (chunk.numbers, chunk.payloads) == ([1], [1])
    assert chunk.bad is not None
    assert chunk.bad.startswith("line 3: the payload is not JSON")


@pytest.mark.parametrize("line", [b"\xff", b"[" * 100_000, b"{"])
def test_no_json(line: bytes) -> None:
    (chunk,) = chunks_of(iter([[(7, line)]]), parse=True)
    assert chunk.bad is not None
    assert chunk.bad.startswith("line 7:")


def test_the_loop_goes_on_while_nothing_comes() -> None:
    told = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        told.wait()  # only the loop can end this
        yield 2

    async def main() -> list[int]:
        found = []
        async for n in in_thread(source()):
            found.append(n)
            asyncio.get_running_loop().call_soon(told.set)
        return found

    assert asyncio.run(main()) == [1, 2]


def test_an_error_of_the_source_is_raised() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError(5, "broken")

    async def main() -> None:
        async for _ in in_thread(source()):
            pass

    with pytest.raises(OSError, match="broken"):
        asyncio.run(main())

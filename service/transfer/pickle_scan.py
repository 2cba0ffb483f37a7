"""Where a pickle ends, and what is in the plainest of them. Nothing is loaded.

persist-queue keeps its items in a file one behind the other, and its position in a dictionary of
numbers, all pickled (protocol 4). Where an item ends follows from the sizes of its opcodes; none of
them is executed. The position is read with the dozen opcodes that a dictionary of numbers
and lists of them takes; any other is refused.

``pickletools.genops`` would find the end as well, but makes a value of each argument on its way: a
text with a single rare character takes four times its bytes, of items that may be large. And it
refuses what it cannot make a value of, such as text that is no UTF-8, though the end is known: all
items behind that one would be lost.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import SegmentCorruptError

__all__ = ["end_of_pickle", "plain_value"]

# By opcode: how many bytes of argument follow; or -n: a size of n bytes, and as many bytes.
_FIXED: Final = {
    **dict.fromkeys(b"(.012NQRabdelost]})u\x81\x85\x86\x87\x88\x89", 0),
    **dict.fromkeys(b"\x8f\x90\x91\x92\x93\x94\x97\x98", 0),
    **dict.fromkeys(b"Khq\x80\x82", 1),
    **dict.fromkeys(b"M\x83", 2),
    **dict.fromkeys(b"Jjr\x84", 4),
    **dict.fromkeys(b"G\x95", 8),
    **dict.fromkeys(b"CU\x8a\x8c", -1),
    **dict.fromkeys(b"BTX\x8b", -4),
    **dict.fromkeys(b"\x8d\x8e\x96", -8),
}  # fmt: skip
_LINES: Final = {**dict.fromkeys(b"FILSVgpP", 1), **dict.fromkeys(b"ci", 2)}  # of text
_STOP: Final = 0x2E
_PROTO: Final = 0x80


def end_of_pickle(data: bytes, start: int = 0) -> int:
    """The offset behind the pickle that begins at ``start``.

    Raises:
        SegmentCorruptError: none does, or not all of it is there.
    """
    if data[start : start + 1] != bytes((_PROTO,)):
        raise _corrupt(start, "no pickle begins here")
    at = start
    while at < len(data):
        code = data[at]
        at = _behind(data, at, start)
        if code == _STOP:
            return at
    raise _corrupt(start, "the pickle is not whole")


def _behind(data: bytes, at: int, start: int) -> int:
    """The offset behind one opcode and its argument."""
    code = data[at]
    at += 1
    size = _FIXED.get(code)
    if size is None:
        lines = _LINES.get(code)
        if lines is None:
            raise _corrupt(start, f"opcode {code:#04x} is none, at {at - 1}")
        for _ in range(lines):
            at = data.find(b"\n", at) + 1
            if not at:
                raise _corrupt(start, "the pickle is not whole")
        return at
    if size < 0:
        count = int.from_bytes(data[at : at - size], "little")
        size = -size + count
    if at + size > len(data):
        raise _corrupt(start, "the pickle is not whole")
    return at + size


def plain_value(data: bytes) -> Any:
    """The value of a pickle of numbers, text, lists and dictionaries.

    Each of them once: shared lists, written out, could fill any memory.

    Raises:
        SegmentCorruptError: the pickle holds anything else.
    """
    try:
        return _plain(data)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as exc:
        raise _corrupt(0, f"not a plain pickle: {exc}") from exc


def _plain(data: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: list[Any] = []
    at, end = 0, end_of_pickle(data)
    while at < end:
        code, begin = data[at : at + 1], at + 1
        at = _behind(data, at, 0)
        argument = data[begin:at]
        if code in b"\x80\x95.":
            continue
        if code in b"KMJ":
            stack.append(int.from_bytes(argument, "little", signed=code == b"J"))
        elif code in b"\x8aX\x8c":
            raw = argument[4 if code == b"X" else 1 :]
            is_number = code == b"\x8a"
            stack.append(int.from_bytes(raw, "little", signed=True) if is_number else raw.decode())
        elif code in b"]}":
            stack.append([] if code == b"]" else {})
        elif code == b"(":
            marks.append(len(stack))
        elif code in b"\x94q":
            memo.append(stack[-1])
        elif code == b"h":
            known = memo[argument[0]]
            if isinstance(known, list | dict):
                raise ValueError("something in it is shared")
            stack.append(known)
        elif code in b"aseu":
            first = marks.pop() if code in b"eu" else len(stack) - (1 if code == b"a" else 2)
            items = stack[first:]
            del stack[first:]
            if code in b"ae":
                stack[-1].extend(items)
            else:
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
        else:
            raise ValueError(f"opcode {code!r}")
    return stack.pop()


def _corrupt(offset: int, reason: str) -> SegmentCorruptError:
    return SegmentCorruptError(f"pickle at {offset}: {reason}", offset=offset, reason=reason)

"""Rot: one bit of a closed store's table is flipped, in the block that holds a chosen row."""

from pathlib import Path

__all__ = ["rot"]


def rot(path: Path, needle: bytes, at: float = 0.5, shard: int = 0) -> None:
    """Flip a bit behind an occurrence of ``needle`` among the rows of a shard's largest table.

    ``at``: which one, from 0 (the first) to 1 (the last). What follows the rows is left alone.
    """
    table = max((path / f"shard{shard}").glob("*.sst"), key=lambda file: file.stat().st_size)
    raw = bytearray(table.read_bytes())
    end = len(raw) * 19 // 20  # behind it the filter and the index
    places, place = [], raw.find(needle)
    while 0 <= place < end:
        places.append(place)
        place = raw.find(needle, place + 1)
    raw[places[round(at * (len(places) - 1))] + len(needle) + 12] ^= 1
    table.write_bytes(raw)

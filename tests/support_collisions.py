"""Two dedup keys of different tenants with one xxh3_128: second preimages of keys above 240 bytes.

Of long inputs the hash adds, lane by lane, the data to one accumulator and to its neighbour the
product of the two halves of ``data xor secret``. Data with one half equal to the (public) secret's
has the product zero and leaves the other half free: two such lanes bring a sum to any value.
"""

from __future__ import annotations

from typing import Final

import xxhash

# The beginning of XXH3's default secret.
_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b532ea371644897a20df94e3819ef46a9deacd8a8"
)
_STRIPE: Final = 64
_LOW: Final = (1 << 32) - 1
_ALL: Final = (1 << 64) - 1


def _word(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 8], "little")


def _sums(raw: bytes, stripes: int) -> list[int]:
    """What the first two lanes of so many stripes add to the first two accumulators."""
    sums = [0, 0]
    for stripe in range(stripes):
        for tenant_queue in (0, 1):
            data = _word(raw, stripe * _STRIPE + 8 * tenant_queue)
            mixed = data ^ _word(_SECRET, 8 * stripe + 8 * tenant_queue)
            sums[tenant_queue ^ 1] += data
            sums[tenant_queue] += (mixed & _LOW) * (mixed >> 32)
    return sums


def forged_key(queue: bytes, tenant: bytes, victim: bytes, key: bytes) -> bytes:
    """A dedup key of ``tenant`` with the old hash of ``victim``'s ``key``: names as long, below 16
    bytes together, a key above 300."""
    goal = b"%b\0%b\0%b" % (queue, victim, key)
    made = bytearray(goal)
    made[: len(queue) + len(tenant) + 2] = b"%b\0%b\0" % (queue, tenant)
    for tenant_queue in (0, 1):
        for stripe, half in ((1, slice(0, 4)), (2, slice(4, 8))):
            at, of_secret = stripe * _STRIPE + 8 * tenant_queue, 8 * stripe + 8 * tenant_queue
            made[at : at + 8] = bytes(8)
            made[at + half.start : at + half.stop] = _SECRET[of_secret : of_secret + 8][half]
    wanted, had = _sums(goal, 3), _sums(bytes(made), 3)
    for tenant_queue in (0, 1):  # its data goes to the other accumulator
        missing = (wanted[tenant_queue ^ 1] - had[tenant_queue ^ 1]) & _ALL
        low = missing & _LOW
        made[2 * _STRIPE + 8 * tenant_queue : 2 * _STRIPE + 8 * tenant_queue + 4] = low.to_bytes(
            4, "little"
        )
        high = (missing - low) >> 32 & _LOW
        made[_STRIPE + 8 * tenant_queue + 4 : _STRIPE + 8 * tenant_queue + 8] = high.to_bytes(
            4, "little"
        )
    assert xxhash.xxh3_128_digest(bytes(made)) == xxhash.xxh3_128_digest(goal)
    return bytes(made[len(queue) + len(tenant) + 2 :])

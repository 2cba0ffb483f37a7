"""Where dedup keys lie cannot be computed by those who give them; entries of format 1 are let go.

The collision is a real one (``support_collisions``): the first test fails with the old hash.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from support_behaviour import StillClock, sound
from support_collisions import forged_key
from support_format_1 import as_format_1
from support_ingest import publish
from support_loop import on_loop

import lodeq
from lodeq.engine.bulk.reader import open_shard
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.records.task import NO_GHOST, decode_task
from lodeq.engine.recovery.dedup_secret import read_secrets
from lodeq.errors import DuplicateTaskError, FormatTooOldError, UsageError
from lodeq.repository.api.in_place_reshard import reshard

KEY = bytes(range(256)) * 2
FORGED = forged_key(b"mail", b"attacker", b"victim00", KEY)


def opened(path: Path, clock: StillClock | None = None, **options: Any) -> Any:
    return lodeq.open(path, clock=clock or StillClock(), inbox=False, **options)


def count_in(engine: lodeq.Engine) -> int:
    """The row's count of old entries, and memory's."""
    (shard,) = engine._state.shards
    raw = shard.overlay.get(ks.OLD_GHOSTS)
    assert shard.old_ghosts == (0 if raw is None else small.decode_old_ghosts(raw))
    return shard.old_ghosts


def test_the_collision_is_one() -> None:
    one, other = b"mail\0victim00\0" + KEY, b"mail\0attacker\0" + FORGED
    assert one != other
    assert ks.old_ghost_hash(one) == ks.old_ghost_hash(other)
    assert ks.ghost_hash(bytes(32), one) != ks.ghost_hash(bytes(32), other)


@on_loop
async def test_a_key_of_another_tenant_takes_nobodys(tmp_path: Path) -> None:
    async with opened(tmp_path / "s") as engine:
        attacker = engine.queue("mail", tenant="attacker")
        victim = engine.queue("mail", tenant="victim00")
        await attacker.enqueue(b"bait", dedup_key=FORGED, dedup_window=3600)
        receipt = await victim.enqueue(b"precious", dedup_key=KEY)
        assert not receipt.duplicate
        assert (await victim.claim_one()).payload == b"precious"
        await sound(engine)


@on_loop
async def test_two_stores_hash_differently(tmp_path: Path) -> None:
    found = set()
    for name in ("one", "other"):
        async with opened(tmp_path / name) as engine:
            await engine.queue("mail").enqueue(b"x", dedup_key="k")
            ((key, _),) = engine._state.shards[0].store.scan(ks.GHOST, ks.GHOST_END, 9)
            found.add(key)
    assert len(found) == 2


# -- a store of format 1 ----------------------------------------------------------------------

KEYS = [("mail", "", key) for key in ("alive", "dead", "late", "window", "other")]


async def filled(path: Path, clock: StillClock) -> dict[str, lodeq.TaskId]:
    """Four entries of format 1: of two ready tasks, one that is over, and a dead one.

    The key of another dead letter, ``dead``, is free: it has no window.
    """
    async with opened(path, clock) as engine:
        mail, ids = engine.queue("mail"), {}
        for key, window in (("window", 60), ("dead", None), ("late", 600)):
            ids[key] = (await mail.enqueue(key, dedup_key=key, dedup_window=window)).id
            lease = await mail.claim_one()
            await (lease.bury("no use") if key != "window" else lease.complete())
        for key in ("alive", "other"):
            ids[key] = (await mail.enqueue(key, dedup_key=key)).id
    as_format_1(path, KEYS)
    return ids


@on_loop
async def test_old_entries_hold_until_they_are_let_go(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", StillClock()
    ids = await filled(path, clock)
    async with opened(path, clock) as engine:
        mail = engine.queue("mail")
        assert count_in(engine) == 4
        await sound(engine)
        for key in ("alive", "other", "window", "late"):
            receipt = await mail.enqueue(b"again", dedup_key=key)
            assert (receipt.id, receipt.duplicate) == (ids[key], True)
        assert count_in(engine) == 4
        for lease in await mail.claim(limit=9):
            await lease.complete()
        assert count_in(engine) == 2
        # Whoever takes a key anew has it under the new hash, and only there.
        await clock.advance(61)
        assert count_in(engine) == 1
        await clock.advance(600)
        assert count_in(engine) == 0
        await sound(engine)
        assert not (await mail.enqueue(b"again", dedup_key="window")).duplicate
    async with opened(path, clock) as engine:
        assert count_in(engine) == 0
        await sound(engine)


@on_loop
async def test_the_count_survives_a_reopen_and_is_recounted(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", StillClock()
    await filled(path, clock)
    async with opened(path, clock) as engine:
        await (await engine.queue("mail").claim_one()).complete()
        assert count_in(engine) == 3
    async with opened(path, clock) as engine:
        assert count_in(engine) == 3
        await sound(engine)
        shard = engine._state.shards[0]
        shard.store.write([(ks.OLD_GHOSTS, small.encode_old_ghosts(7))])
        (finding,) = (await engine.verify()).findings
        assert "says 7 dedup keys of format 1, there are 3" in finding.detail
    async with opened(path, clock, recovery="salvage") as engine:
        assert count_in(engine) == 2  # by the clock of the machine one has lapsed long ago
        await sound(engine)


@on_loop
async def test_a_key_of_format_1_is_replaced_and_raised_over(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", StillClock()
    ids = await filled(path, clock)
    async with opened(path, clock) as engine:
        mail = engine.queue("mail")
        with pytest.raises(DuplicateTaskError) as caught:
            await mail.enqueue(b"x", dedup_key="alive", on_conflict="raise")
        assert caught.value.task_id == ids["alive"]
        receipt = await mail.enqueue(b"x", dedup_key="alive", on_conflict="replace")
        assert receipt.replaced == ids["alive"]
        assert count_in(engine) == 3
        assert (await mail.enqueue(b"y", dedup_key="alive")).id == receipt.id
        await sound(engine)


@on_loop
async def test_a_dead_letter_of_format_1_is_redriven(tmp_path: Path) -> None:
    """With its key where it still has the entry; else without: whose it is cannot be told."""
    path, clock = tmp_path / "s", StillClock()
    ids = await filled(path, clock)
    async with opened(path, clock) as engine:
        mail = engine.queue("mail")
        assert await mail.redrive([ids["late"]]) == 1
        assert (await mail.enqueue(b"x", dedup_key="late")).id == ids["late"]
        assert count_in(engine) == 4
        taken = await mail.enqueue(b"instead", dedup_key="dead")
        assert not taken.duplicate
        assert await mail.redrive([ids["dead"]]) == 1
        raw = engine._state.shards[0].overlay.get(ks.TASK + ids["dead"])
        assert decode_task(raw).ghost == NO_GHOST
        await sound(engine)
        assert (await engine.cancel(ids["dead"])) is True
        assert (await mail.enqueue(b"x", dedup_key="dead")).id == taken.id
        assert count_in(engine) == 4
        await sound(engine)


@on_loop
async def test_a_lapsed_entry_of_format_1_goes_with_the_next_of_its_key(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", StillClock()
    await filled(path, clock)
    async with opened(path, clock, reaper=False) as engine:
        clock.jump(601)
        receipt = await engine.queue("mail").enqueue(b"x", dedup_key="window")
        assert not receipt.duplicate
        assert count_in(engine) == 3
        await sound(engine)


@pytest.mark.parametrize("policy", ["error", "skip", "replace"])
@on_loop
async def test_a_load_meets_keys_of_format_1(tmp_path: Path, policy: str) -> None:
    path, clock = tmp_path / "s", StillClock()
    ids = await filled(path, clock)
    async with opened(path, clock) as engine:
        publish(
            path,
            [lodeq.NewTask(b"l", dedup_key=key) for key in ("alive", "dead", "fresh")],
            on_conflict=policy,
            clock=clock,
        )
        (job,) = (await engine.ingest()).jobs
        mail = engine.queue("mail")
        held = (await mail.enqueue(b"x", dedup_key="alive")).id
        if policy == "error":
            assert job.state == "refused"
            assert (held, count_in(engine)) == (ids["alive"], 4)
        elif policy == "skip":
            assert (job.state, job.tasks, job.skipped) == ("done", 2, 1)
            assert (held, count_in(engine)) == (ids["alive"], 4)
        else:
            assert (job.state, job.tasks, job.replaced) == ("done", 3, 1)
            assert held != ids["alive"]
            assert count_in(engine) == 3
            assert (await engine.get(ids["alive"])).state == "cancelled"
        await sound(engine)


@on_loop
async def test_what_is_staged_is_staged_for_this_store(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", StillClock()
    await filled(path, clock)
    with pytest.raises(UsageError, match="open the store once"):
        lodeq.Stage(path, "early", clock=clock)
    async with opened(path, clock) as engine:
        publish(path, [lodeq.NewTask(b"l", dedup_key="k")], "mine", clock=clock)
        for shard in engine._state.shards:
            shard.secret = bytes(32)
        (job,) = (await engine.ingest()).jobs
        assert job.state == "refused"
        assert "secret of another store" in job.reason


@on_loop
async def test_a_load_of_format_1_is_staged_again(tmp_path: Path, monkeypatch: Any) -> None:
    path, clock = tmp_path / "s", StillClock()
    async with opened(path, clock) as engine:
        monkeypatch.setattr(
            "lodeq.engine.bulk.manifest.Manifest.__new__.__defaults__", ((), 1, b"", bytes(16))
        )
        publish(path, [lodeq.NewTask(b"l", dedup_key="k")], "keyed", clock=clock)
        publish(path, [lodeq.NewTask(b"l")], "plain", clock=clock)
        monkeypatch.undo()
        jobs = {job.job: job for job in (await engine.ingest()).jobs}
        assert jobs["keyed"].state == "refused"
        assert "stage it again" in jobs["keyed"].reason
        assert jobs["plain"].state == "done"
        await sound(engine)


@pytest.mark.slow
@on_loop
async def test_a_reshard_brings_secret_and_count_along(tmp_path: Path) -> None:
    path, clock = tmp_path / "s", StillClock()
    ids = await filled(path, clock)
    with pytest.raises(FormatTooOldError, match="start its service once with this release"):
        reshard(path, 2)
    async with opened(path, clock) as engine:
        new = (await engine.queue("mail").enqueue(b"x", dedup_key="new")).id
        before = engine._state.shards[0].secret
    reshard(path, 3)
    async with opened(path, clock) as engine:
        shards = engine._state.shards
        assert [shard.secret for shard in shards] == [before] * 3
        assert sum(shard.old_ghosts for shard in shards) == 4
        mail = engine.queue("mail")
        assert (await mail.enqueue(b"x", dedup_key="new")).id == new
        assert (await mail.enqueue(b"x", dedup_key="alive")).id == ids["alive"]
        await sound(engine)


@on_loop
async def test_a_checkpoint_and_a_snapshot_bring_the_secret_along(tmp_path: Path) -> None:
    async with opened(tmp_path / "s") as engine:
        receipt = await engine.queue("mail").enqueue(b"x", dedup_key="k")
        await engine.checkpoint(tmp_path / "copy")
        taken = await engine.snapshot()
        with open_shard(taken.path, 0) as reader:
            secret = small.decode_secret(reader.get(ks.SECRET))
        assert secret == engine._state.shards[0].secret
    lodeq.restore(tmp_path / "copy", tmp_path / "back")
    async with opened(tmp_path / "back") as engine:
        again = await engine.queue("mail").enqueue(b"x", dedup_key="k")
        assert (again.id, again.duplicate) == (receipt.id, True)
        publish(
            tmp_path / "back",
            [lodeq.NewTask(b"l", dedup_key="k")],
            on_conflict="skip",
            clock=engine._state.clock,
        )
        (job,) = (await engine.ingest()).jobs
        assert (job.state, job.tasks, job.skipped) == ("done", 0, 1), job.reason


@on_loop
async def test_the_secret_is_shown_nowhere(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        publish(path, [lodeq.NewTask(b"l", dedup_key="k")])
        secret = engine._state.shards[0].secret
        assert {shard.secret for shard in engine._state.shards} == {secret}
        held = read_secrets(str(path), engine._runtime.opened.store_id)
        assert held.of_shards == (secret, secret)
        assert repr(held) == "<secrets of 2 shards>"
        await engine.ingest()
        told = [repr(await engine.stats()), repr(await engine.health()), caplog.text]
    files = [file for file in (path / "inbox").rglob("*") if file.is_file()]
    assert files
    told += [file.read_bytes().hex() + file.read_text("latin-1") for file in files]
    assert not any(secret.hex() in text or repr(secret) in text for text in told)
    assert stat.S_IMODE((path / "secrets").stat().st_mode) == 0o600

"""No number of a body file is used twice, also where nothing but a row remembers it."""

from pathlib import Path

from support_bodies import Opened
from support_loop import on_loop

from lodeq.engine.records.keyspace import BODY_FILES
from lodeq.engine.records.rows import encode_files


@on_loop
async def test_a_number_is_not_used_again_after_a_restart(tmp_path: Path) -> None:
    """Neither row nor file is left that would tell of it."""
    async with Opened(tmp_path) as rig:
        await rig.fill(2)
        await rig.fill(1)
        assert rig.files() == [1, 2]
        await rig.end(3)
        await rig.look()
        assert rig.files() == []
    for number in (3, 4):
        async with Opened(tmp_path) as rig:
            await rig.fill(1)
            assert rig.files() == [number]
            await rig.end(1)
            await rig.look()
            assert rig.files() == []
            assert (await rig.engine.verify()).ok


@on_loop
async def test_a_store_without_the_number_goes_on(tmp_path: Path) -> None:
    """Of an earlier release, or one where the row is damaged."""
    for raw in (None, b"F\x01 damaged"):
        async with Opened(tmp_path) as rig:
            (task_id,) = await rig.fill(1)
            number = rig.files()[-1]
            rig.shard.store.write([(BODY_FILES, raw)])
        async with Opened(tmp_path) as rig:
            assert rig.body(task_id)[:3] == b"000"
            await rig.fill(1)
            assert rig.files()[-1] == number + 1
            assert rig.shard.store.get(BODY_FILES) == encode_files(number + 2, number + 1)

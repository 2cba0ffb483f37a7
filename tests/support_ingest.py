"""Loads, staged beside an engine, and what must hold once they are in."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lodeq
from lodeq.engine.bulk.inbox import staged_path
from lodeq.engine.bulk.manifest import Manifest, decode_manifest, encode_manifest
from lodeq.repository.model.arguments import names_of
from lodeq.repository.model.encoded_tasks import TaskTemplate

__all__ = [
    "create",
    "inbox_of",
    "manifest_of",
    "publish",
    "publish_as",
    "rewrite",
    "staged",
    "whole",
]


async def create(path: Path, shards: int = 2, **how: Any) -> None:
    """A store, closed."""
    async with lodeq.open(path, shards=shards, **how):
        pass


def publish(path: Path, tasks: Iterable[lodeq.NewTask], job: str = "j", **how: Any) -> list[Any]:
    """Stage and publish for queue ``mail``; the ids."""
    with lodeq.Stage(path, job, **how) as stage:
        ids = stage.add(list(tasks), queue="mail")
        assert stage.publish()
    return ids


def staged(path: Path, job: str = "j") -> Path:
    return Path(staged_path(str(path), job))


def inbox_of(path: Path) -> dict[str, list[str]]:
    """The names in each folder of the inbox."""
    inbox = path / "inbox"
    found = {"": sorted(p.name for p in inbox.iterdir() if p.is_file())}
    for folder in ("staged", "done", "refused"):
        names = (inbox / folder).iterdir() if (inbox / folder).is_dir() else ()
        found[folder] = sorted(p.name for p in names)
    return found


def manifest_of(path: Path, job: str = "j") -> Manifest:
    return decode_manifest((path / "inbox" / f"{job}.json").read_bytes(), job)


def rewrite(path: Path, job: str = "j", **fields: Any) -> None:
    """Change a published manifest, its checksum too."""
    changed = encode_manifest(manifest_of(path, job)._replace(**fields))
    (path / "inbox" / f"{job}.json").write_bytes(changed)


def refusal(path: Path, job: str = "j") -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((path / "inbox" / "refused" / f"{job}.json").read_text())
    return facts


async def whole(engine: lodeq.Engine, ready: int, delayed: int = 0) -> None:
    """Counters, rows, ghosts and expiry rows agree, and so many tasks wait."""
    report = await engine.verify()
    assert report.ok, report.findings
    stats = await engine.stats()
    assert (stats.ready, stats.delayed, stats.anomalies) == (ready, delayed, ())


def publish_as(
    path: Path, tasks: Iterable[tuple[bytes, lodeq.NewTask]], job: str = "j", **how: Any
) -> None:
    """Stage and publish for queue ``mail``, with ids from outside, as Spark's tasks do."""
    mail = TaskTemplate(*names_of("mail", ""))
    with lodeq.Stage(path, job, **how) as stage:
        given: Any = stage
        for task_id, task in tasks:
            given._id = lambda item, now_ms, raw=bytes(task_id): raw
            assert stage._place(stage._item(task, mail, stage._clock.wall_us())) is not None
        assert stage.publish()

"""Which queues the first page shows, where there are more than it has room for."""

from types import SimpleNamespace
from typing import Any

from lodeq.repository.api.view import Flows
from lodeq.repository.model.values import QueueStats
from lodeq.service.dashboard.pages.overview import QUEUES_MAX, queue_lines
from lodeq.service.shared.engine_status import _QueueSum

FIGURES: Any = SimpleNamespace(rates=lambda name: None)


def tenant_queue(**known: Any) -> QueueStats:
    counts = dict.fromkeys(("ready", "delayed", "leased", "dead", "results"), 0)
    return QueueStats(**{**counts, "oldest_ready_age": None, "is_paused": False, **known})


def shown(queues: dict[tuple[str, str], QueueStats], part: str = "") -> tuple[list[str], int]:
    found: dict[str, _QueueSum] = {}
    for (name, tenant), stats in sorted(queues.items()):
        found.setdefault(name, _QueueSum(name, None)).add(tenant, stats, Flows(), Flows())
    whole = {name: parts.status() for name, parts in found.items()}
    status: Any = SimpleNamespace(queues=whole, names=list(whole))
    lines, left_out = queue_lines(FIGURES, status, part)
    return [line.name for line in lines], left_out


def test_all_are_shown_by_name_while_there_is_room() -> None:
    queues = {(f"q{n:03}", ""): tenant_queue(oldest_ready_age=float(n)) for n in range(QUEUES_MAX)}
    assert shown(queues) == ([f"q{n:03}" for n in range(QUEUES_MAX)], 0)


def test_what_is_stuck_is_shown_whatever_its_name() -> None:
    queues = {(f"q{n:03}", ""): tenant_queue(ready=1, oldest_ready_age=1.0) for n in range(300)}
    queues["z-dead", "tenant"] = tenant_queue(dead=1)
    queues["z-dead", ""] = tenant_queue()
    queues["z-old", ""] = tenant_queue(ready=1, oldest_ready_age=3600.0)
    queues["z-paused", ""] = tenant_queue(is_paused=True)
    queues["z-quiet", ""] = tenant_queue()
    names, left_out = shown(queues)
    assert names == [*(f"q{n:03}" for n in range(QUEUES_MAX - 3)), "z-dead", "z-old", "z-paused"]
    assert left_out == 104
    assert shown(queues, "quiet") == (["z-quiet"], 0)

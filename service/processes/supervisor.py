"""Starts the processes of a store, starts those again that die, and ends them.

A process that ends by itself is started again: at once the first time, then after a pause that
doubles up to ``PAUSE_MAX_S``; one that has served for ``STEADY_S`` begins with the short pause
again. It is never given up: its shards have nobody else. Meanwhile ``statuses`` says that it is
down, and why. Each process holds the end of a pipe, and ends itself when the other end, which is
here, is gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ...client.documents.problems import error_of
from ...engine.runtime.clock import Clock, SystemClock
from ...errors import LodeqError, StorageError
from .plan import REOPEN_CODE, Order

__all__ = ["COMMAND", "ProcessStatus", "Supervisor"]

_CHILD: Final = "from lodeq.service.processes.child import main; raise SystemExit(main())"
COMMAND: Final = (sys.executable, "-P", "-c", _CHILD)  # -P: no other lodeq beside us
PAUSES_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
PAUSE_MAX_S: Final = PAUSES_S[-1]
STEADY_S: Final = 60.0
HANG_S: Final = 20.0  # beyond the grace, until a process that does not end is killed
_LINE_BYTES_MAX: Final = 1 << 20
_log: Final = logging.getLogger("lodeq.processes")


class ProcessStatus(NamedTuple):
    """One process, as its supervisor knows it.

    Attributes:
        number: from 0.
        url: where clients reach it.
        shards: that it has.
        pid: None while there is none.
        state: ``starting``, ``serving``, ``down`` or ``stopped``.
        restarts: how often it was started again.
        why: how it ended last; empty if it has not.
    """

    number: int
    url: str
    shards: Sequence[int]
    pid: int | None
    state: str
    restarts: int
    why: str

    def document(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {**self._asdict(), "shards": list(self.shards)}

    @property
    def problem(self) -> str | None:
        """What is wrong with it, in words; None: nothing."""
        if self.state == "serving":
            return None
        shards = ", ".join(map(str, self.shards))
        what = f"process {self.number} is {self.state}, and with it shards {shards}"
        return f"{what}: {self.why}" if self.why else what


class _Process:
    """One process and its pipes."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.state = "starting"
        self.restarts = 0
        self.why = ""
        self.running: asyncio.subprocess.Process | None = None
        self.is_clean = True  # the last one closed its shards

    @property
    def status(self) -> ProcessStatus:
        order, running = self.order, self.running
        shards = range(order.number, order.shards, len(order.urls))
        pid = None if running is None or running.returncode is not None else running.pid
        url = order.urls[order.number]
        return ProcessStatus(order.number, url, shards, pid, self.state, self.restarts, self.why)


class Supervisor:
    """The processes of one store. On asyncio.

    Args:
        orders: one a process.
        command: starts a process, which reads its order.
        clock: for pauses.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        command: Sequence[str] = COMMAND,
        clock: Clock | None = None,
    ) -> None:
        self._processes = [_Process(one) for one in orders]
        self._command = tuple(command)
        self._clock = SystemClock() if clock is None else clock
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    def statuses(self) -> list[ProcessStatus]:
        """Every process, by its number."""
        return [one.status for one in self._processes]

    @property
    def is_clean(self) -> bool:
        """Whether each process has closed its shards; once ``close`` has returned."""
        return all(one.is_clean for one in self._processes)

    async def start(self) -> None:
        """Start all processes, and wait until they serve.

        Raises:
            LodeqError: one of them refuses to; the others are ended.
        """
        begun = [asyncio.ensure_future(self._begin(one)) for one in self._processes]
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        failed = next((one for one in outcomes if isinstance(one, BaseException)), None)
        if failed is not None:
            await self.close()
            raise failed
        self._keepers = [asyncio.ensure_future(self._keep(one)) for one in self._processes]

    async def _begin(self, one: _Process) -> None:
        """Start a process, and wait until it serves.

        Raises:
            LodeqError: its own, or that it ended without a word.
        """
        one.state = "starting"
        running = one.running = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
        )
        one.is_clean = False
        if self._stopping.is_set():
            _let_go(running)
        elif running.stdin is not None:
            running.stdin.write(one.order.line())
        said = await _said(running)
        if "serving" in said:
            one.state, one.why = "serving", ""
            return
        code = await running.wait()
        one.state = "down"
        if self._stopping.is_set():
            one.is_clean = code == 0
            return
        refused = said.get("refused")
        if isinstance(refused, dict):
            error = error_of(refused, 500)
        else:
            error = StorageError(f"process {one.order.number} {_ended(code)} before it served")
        one.why = str(error)
        raise error

    async def _keep(self, one: _Process) -> None:
        """Wait until a process ends, and start it again, until all are to end."""
        tries = 0
        while not self._stopping.is_set():
            since = self._clock.mono()
            if one.running is not None and one.state == "serving":
                code = await one.running.wait()
                one.is_clean = code == 0
                if self._stopping.is_set():
                    break
                one.state, one.why = "down", _ended(code)
                if self._clock.mono() - since >= STEADY_S:
                    tries = 0
            pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
            tries += 1
            self._note(one, pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            if self._stopping.is_set():
                break
            one.restarts += 1
            try:
                await self._begin(one)
            except (LodeqError, OSError) as error:
                one.state, one.why = "down", str(error)
        one.state = "stopped"

    def _note(self, one: _Process, pause_s: float) -> None:
        number, shards = one.order.number, list(one.status.shards)
        fields = {"event": "process_down", "number": number, "shards": shards, "why": one.why}
        _log.error(
            "process %d, which has shards %s, is down (%s): it is started again in %g s",
            number,
            ", ".join(map(str, shards)),
            one.why,
            pause_s,
            extra=fields,
        )

    async def close(self) -> None:
        """End all processes: each answers what it has begun, and closes its shards.

        One that does not end in time, ``HANG_S`` beyond its grace, is killed.

        Durability: all that was acknowledged stays so. Cancellation: call it again.
        """
        self._stopping.set()
        for one in self._processes:
            if one.running is not None:
                _let_go(one.running)
        await asyncio.gather(*map(self._ended_in_time, self._processes))  # their times run at once
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _ended_in_time(self, one: _Process) -> None:
        running = one.running
        if running is None:
            return
        try:
            async with asyncio.timeout(one.order.grace_s + HANG_S):
                code = await running.wait()
        except TimeoutError:
            fields = {"event": "process_killed", "number": one.order.number}
            _log.error("process %d does not end: it is killed", one.order.number, extra=fields)
            with suppress(ProcessLookupError):
                running.kill()
            code = await running.wait()
        one.is_clean = code == 0
        one.state = "stopped"


def _let_go(running: asyncio.subprocess.Process) -> None:
    """The end of its pipe ends a process."""
    if running.stdin is not None:
        running.stdin.close()


async def _said(running: asyncio.subprocess.Process) -> dict[str, Any]:
    """What a process says of its start; empty if it ended, or says something else."""
    if running.stdout is None:
        return {}
    try:
        found = json.loads(await running.stdout.readline())
    except ValueError:  # it ended, or printed something
        return {}
    return found if isinstance(found, dict) else {}


def _ended(code: int) -> str:
    """How a process ended, by its exit code."""
    if code == REOPEN_CODE:
        return "ended for a poisoned shard to be reopened"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"

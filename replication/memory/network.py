"""What lies between a node and the log in memory, and what goes wrong there.

``Network`` does what a test says, and otherwise delivers everything at once. ``SeededNetwork``
draws faults from a seed. Both know the states that last: a node that is *split* from the log, a
*frozen* node (nothing reaches it, nothing leaves it, until it is thawed), a log *without quorum*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...engine.runtime.ids import Dice

__all__ = ["Network", "Rates", "Route", "SeededNetwork"]


class Route(NamedTuple):
    """What becomes of one request.

    Attributes:
        requests: after how many seconds it arrives; none: it is lost; several: it is repeated.
        answer: how many seconds its answer takes; None: that is lost.
    """

    requests: tuple[float, ...] = (0.0,)
    answer: float | None = 0.0


class _Planned(NamedTuple):
    node: str | None
    kind: str | None
    route: Route


class Network:
    """A network whose faults are named one by one.

    Kinds of requests are the calls of ``SharedLog``, ``renew`` for a session's renewal, and
    ``fragment`` for a part of a record that was cut.
    """

    def __init__(self) -> None:
        self.has_quorum = True
        self.splits: set[str] = set()
        self.muted: set[str] = set()  # what these send arrives, and no answer comes back
        self.dropped_watch: set[str] = set()  # nodes that get no hints
        self.behind: set[str] = set()  # whose near reads leave out the newest of several
        self._planned: list[_Planned] = []
        self._frozen: dict[str, list[Callable[[], None]]] = {}

    def plan(
        self, route: Route, *, node: str | None = None, kind: str | None = None, times: int = 1
    ) -> None:
        """Give the next request that fits this route.

        Args:
            route: what becomes of it.
            node: of whom; None: of anybody.
            kind: which call; None: any.
            times: so many requests.
        """
        self._planned += [_Planned(node, kind, route)] * times

    def freeze(self, node: str) -> None:
        """Stop ``node``: what it sends, and what is sent to it, waits until ``thaw``."""
        self._frozen.setdefault(node, [])

    def thaw(self, node: str) -> None:
        """Let ``node`` go on; what has waited is delivered in order."""
        for deliver in self._frozen.pop(node, []):
            deliver()

    def holds(self, node: str, deliver: Callable[[], None]) -> bool:
        """Whether ``node`` is frozen, and then keep ``deliver`` for later."""
        if node not in self._frozen:
            return False
        self._frozen[node].append(deliver)
        return True

    def reaches(self, node: str) -> bool:
        """Whether a request of ``node`` finds a log that can answer."""
        return self.has_quorum and node not in self.splits

    def route(self, node: str, kind: str) -> Route:
        """What becomes of the next request of ``node``."""
        for at, planned in enumerate(self._planned):
            if planned.node in (None, node) and planned.kind in (None, kind):
                del self._planned[at]
                return planned.route
        return self.draw_route()

    def draw_route(self) -> Route:
        """What becomes of a request that nothing was planned for."""
        return Route()

    def reads_newest(self, node: str) -> bool:
        """Whether a near read of ``node`` that finds several records has the newest of them."""
        return node not in self.behind and self.draw_newest()

    def draw_newest(self) -> bool:
        """The same for a node for which nothing was said."""
        return True

    def hints(self, node: str) -> tuple[float, ...]:
        """After how many seconds ``node`` hears of a change: none or several are possible."""
        return () if node in self.dropped_watch else self.draw_hints()

    def draw_hints(self) -> tuple[float, ...]:
        """The same for a node for which nothing was said."""
        return (0.0,)


class Rates(NamedTuple):
    """How often something goes wrong, 0 to 1, and how long a delay is at most, in seconds."""

    request_lost: float = 0.01
    answer_lost: float = 0.02
    repeated: float = 0.02
    delayed: float = 0.1
    delay_s_max: float = 0.3
    hint_lost: float = 0.1
    hint_repeated: float = 0.05
    read_behind: float = 0.1


class SeededNetwork(Network):
    """A network whose faults are drawn.

    Args:
        dice: makes the choices; the same seed makes the same ones.
        rates: how often.
    """

    def __init__(self, dice: Dice, rates: Rates | None = None) -> None:
        super().__init__()
        self.rates = Rates() if rates is None else rates
        self.is_calm = False  # nothing is drawn any more
        self._dice = dice

    def _is(self, rate: float) -> bool:
        return not self.is_calm and self._dice.random() < rate

    def _delay(self) -> float:
        return self._dice.random() * self.rates.delay_s_max if self._is(self.rates.delayed) else 0.0

    def draw_route(self) -> Route:
        """Lost, repeated, delayed, or neither."""
        if self._is(self.rates.request_lost):
            return Route(())
        copies = 2 if self._is(self.rates.repeated) else 1
        requests = tuple(self._delay() for _ in range(copies))
        return Route(requests, None if self._is(self.rates.answer_lost) else self._delay())

    def draw_newest(self) -> bool:
        """Now and then not: it asked a member that lags."""
        return not self._is(self.rates.read_behind)

    def draw_hints(self) -> tuple[float, ...]:
        """Lost, repeated, delayed, or neither."""
        if self._is(self.rates.hint_lost):
            return ()
        copies = 2 if self._is(self.rates.hint_repeated) else 1
        return tuple(self._delay() for _ in range(copies))

"""What the recorder itself takes of the script's time, and the lock that its methods share.

@costed
def read(self, ...): ...        # of a class with a `cost: OwnCost`: holds the lock, and counts its time

cost.spent_ns                   # so far
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

from tracer.clock import EpochClock

T = TypeVar("T", bound=Callable[..., Any])


class OwnCost:
    """The time that costed methods took, and their lock, which a thread may take again."""

    def __init__(self, clock: EpochClock) -> None:
        self.clock = clock
        self.spent_ns = 0
        self.lock = threading.RLock()


class _Costed(Protocol):
    cost: OwnCost


def costed(method: T) -> T:
    """`method` under the lock, with the time that it takes counted as the recorder's own."""

    @wraps(method)
    def counted(self: _Costed, *args: Any, **kwargs: Any) -> Any:
        cost = self.cost
        began_ns = cost.clock.perf_ns()
        try:
            with cost.lock:
                return method(self, *args, **kwargs)
        finally:
            cost.spent_ns += cost.clock.perf_ns() - began_ns

    return counted  # type: ignore[return-value]

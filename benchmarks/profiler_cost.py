"""Measures the host time that torch.profiler takes per event, for `EVENT_COSTS` in traces/comparison/thresholds.py.

    python benchmarks/profiler_cost.py [--rounds 8]         # on a GPU, simulated or real; on a CPU without launches

The benchmark times loops of one short call with and without the profiler, with the options of `trace record`. In each round,
the fastest loop is used. The cost per call is the median difference over several rounds. For calls of modules, the difference
includes the recorder's wrapper in profiled steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

import torch

CALLS, REPEATS = 200, 5


@dataclass(frozen=True)
class Loop:
    """Describes a call that creates one event of a kind."""

    call: Callable[[], object]
    others: tuple[str, ...] = ()  # kinds of the other events that the call creates
    bare: Callable[[], object] | None = None  # the call to use without the profiler, if it is a different call


def loops() -> dict[str, Loop]:
    one, other = torch.zeros(4), torch.zeros(4)
    fast_range: Any = torch._C._profiler._RecordFunctionFast
    module = torch.nn.Identity()
    names: WeakKeyDictionary[Any, str] = WeakKeyDictionary({module: "nn.Module: Identity_0"})

    def in_range() -> None:
        with fast_range("range"):
            pass

    def call_module(*args: Any, **kwargs: Any) -> None:
        pass

    def call_in_range(*args: Any, **kwargs: Any) -> None:
        with fast_range(names.get(module)):
            call_module(*args, **kwargs)

    found = {
        "op": Loop(lambda: one.add_(other)),
        "range": Loop(in_range),
        "module": Loop(lambda: call_in_range(one), bare=lambda: call_module(one)),
        "memory": Loop(lambda: torch.empty(4), ("op", "memory")),
    }
    if torch.cuda.is_available():
        there = torch.zeros(4, device="cuda")
        found["launch"] = Loop(lambda: there.add_(1), ("op",))
    return found


def per_call_ns(call: Callable[[], object]) -> float:
    """Return the time of the fastest loop."""
    times = []
    for _ in range(REPEATS):
        began_ns = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        times.append(time.perf_counter_ns() - began_ns)
    return min(times) / CALLS


def profiler() -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    calls = loops()
    slower_ns: dict[str, list[float]] = {kind: [] for kind in calls}
    for _ in range(args.rounds):
        bare_ns = {kind: per_call_ns(loop.bare or loop.call) for kind, loop in calls.items()}
        with profiler():
            profiled_ns = {kind: per_call_ns(loop.call) for kind, loop in calls.items()}
        for kind in calls:
            slower_ns[kind].append(profiled_ns[kind] - bare_ns[kind])
    cost_ns: dict[str, float] = {}
    for kind, loop in calls.items():
        known = sum(cost_ns[other] for other in loop.others if other in cost_ns)
        cost_ns[kind] = (median(slower_ns[kind]) - known) / (1 + loop.others.count(kind))
    for kind, cost in cost_ns.items():
        print(f"{kind:8} {cost:7.0f} ns  {cost / cost_ns['op']:5.2f} of an op with shapes")


if __name__ == "__main__":
    main()

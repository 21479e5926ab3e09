"""Measures the shortest time that a recorder in Python can add to a step.

    build/simulated_device/with_device .venv-cuda/bin/python benchmarks/recording_floor.py [--seconds 20]

The wrappers in this file replace the same functions of PyTorch as `trace record --grain phase`. The wrappers decide nothing and
check nothing, so every recorder needs at least their time. Four kinds of wrappers are measured. Each kind does more than the
kind before it:

- `calls`: the wrappers only call the original functions
- `times`: the wrappers also store a time at each boundary of a phase
- `events`: the wrappers also record as many CUDA events as the recorder
- `reads`: after 128 steps or half a second, the times between the CUDA events are also read

Steps with and without wrappers alternate in one process. The result is the median difference in processor time, in µs per step.
The steps of 30 and 100 ms contain other work of the host, which is not measured. After this work, the CPU caches contain less
of the wrappers' code, so the wrappers are slower than in short steps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from benchmarks.paired_processes import IN_TURN, IN_TURN_US, LEAST_IN_TURN, SETTLING, SETTLING_S, Step  # noqa: E402
from benchmarks.recording_cost import programs  # noqa: E402
from tracer.device.torch_cuda import TorchCuda  # noqa: E402
from traces.script.patching import temporarily_set  # noqa: E402

KINDS = CALLS, TIMES, EVENTS, READS = "calls", "times", "events", "reads"
# For each program, the boundaries of one step in order; 1 means that the recorder records a CUDA event at the boundary.
BOUNDARIES = {
    "one linear layer": (1, 1, 0, 1, 1, 1, 0, 1, 0),
    **dict.fromkeys(("with a loader", "30 ms", "100 ms"), (1, 0, 1, 0, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0)),
}
# wrapped functions, and the number of boundaries before and after each call
WRAPPED: list[tuple[Any, str, int, int]] = [
    (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", 1, 1),
    (torch.Tensor, "to", 1, 1),
    (torch.nn.Module, "__call__", 1, 0),
    (F, "cross_entropy", 1, 0),
    (torch.optim.Optimizer, "zero_grad", 1, 1),
    (torch.autograd, "backward", 1, 1),
    (torch.autograd.graph, "_engine_run_backward", 0, 0),
    (torch.autograd, "_engine_run_backward", 0, 0),
    (torch.optim.SGD, "step", 1, 2),
    (torch.Tensor, "item", 1, 0),
]


class Floor:
    def __init__(self, boundaries: tuple[int, ...], in_turn: int) -> None:
        self._cuda, self._stream = TorchCuda(torch), torch.cuda.current_stream()
        self._events = [self._cuda.event() for _ in range(in_turn * sum(boundaries))]
        self._boundaries, self._in_turn = boundaries, in_turn
        self._times_ns: list[int] = []

    def _report(self, kind: str) -> Callable[[], None]:
        store, now_ns, stream = self._times_ns.append, time.perf_counter_ns, self._stream
        events: Iterator[Any] = cycle(self._events)
        records = cycle(self._boundaries if kind in (EVENTS, READS) else (0,))

        def report() -> None:
            store(now_ns())
            if next(records):
                next(events).record(stream)

        return report

    def added_us(self, step: Step, kind: str) -> float:
        with ExitStack() as wrappers:
            before_us = self._turn_us(step)
            report = self._report(kind)
            for owner, name, before, after in WRAPPED:
                counts = (0, 0) if kind == CALLS else (before, after)
                wrappers.enter_context(temporarily_set(owner, **{name: wrapped(getattr(owner, name), report, *counts)}))
            with_us = self._turn_us(step, reads=kind == READS)
        return with_us - (before_us + self._turn_us(step)) / 2

    def _turn_us(self, step: Step, *, reads: bool = False) -> float:
        step()  # not measured, because the caches are cold
        self._times_ns.clear()
        began_ns, other_ns = time.thread_time_ns(), 0
        for _ in range(self._in_turn):
            other_ns += step()[1]
        if reads and self._events[-1].query():
            self._cuda.elapsed_ms(self._events, 0)
        return (time.thread_time_ns() - began_ns - other_ns) / self._in_turn / 1e3


def wrapped(call: Callable[..., Any], report: Callable[[], None], before: int, after: int) -> Callable[..., Any]:
    if not before:
        return lambda *args, **kwargs: call(*args, **kwargs)

    def called(*args: Any, **kwargs: Any) -> Any:
        report()
        result = call(*args, **kwargs)
        for _ in range(after):
            report()
        return result

    return called


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="duration of all measurements")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'µs per step':17}" + "".join(f"{kind:>8}" for kind in KINDS))
    for name, boundaries in BOUNDARIES.items():
        step = programs(1, 1)[name][1]()
        began_s, steps = time.monotonic(), 0
        while steps < SETTLING and time.monotonic() < began_s + SETTLING_S:
            step()
            steps += 1
        steps_in_turn = IN_TURN_US / 1e6 * steps / (time.monotonic() - began_s)
        in_turn = round(min(max(steps_in_turn, LEAST_IN_TURN), IN_TURN))
        floor, found = Floor(boundaries, in_turn), {kind: list[float]() for kind in KINDS}
        until = time.monotonic() + args.seconds / len(BOUNDARIES)
        while time.monotonic() < until:
            for kind in KINDS:
                found[kind].append(floor.added_us(step, kind))
        print(f"{name:17}" + "".join(f"{median(found[kind]):8.1f}" for kind in KINDS))
    return 0


if __name__ == "__main__":
    sys.exit(main())

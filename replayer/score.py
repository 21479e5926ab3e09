"""The score: a recording laid out so that a running script can be played against it.

A step of the score holds its phase segments; a segment holds the recorded op instances that reached the device, by the keys
under which a replayed op looks for them, and the kernels they launched. Everything here is shared by all
replays of the step and read-only, but for what the matching remembers (`SegmentScore.memory`).

    score = Score.of(trace)
    step = score.step(0)
    segment = step.segments["forward", 0]
    segment.exact[score.keys(site).exact]       # [Instance(start_ns, end_ns, kernels), ...]
"""

from __future__ import annotations

import numpy as np

from replayer.costs import DeviceSpeed, data_sheet_speed, fitted_speed
from replayer.layout import TYPICAL_LATENCY_NS, Layout
from replayer.parts import Keys, StepScore
from replayer.sites import Site
from traces.equivalents import canonical_op, canonical_shapes
from traces.model import Shape, StepKind, Trace, shapes_text


class Score:
    """A whole recording of one rank, step by step."""

    def __init__(self, trace: Trace, rank: int) -> None:
        self.trace = trace
        self.devices = [device for device in trace.devices if device.rank == rank]
        self.steps: list[StepScore] = []
        self.first: list[int] = []  # steps replayed once, in order, as they were recorded
        self.cycle: list[int] = []  # steady steps, replayed in turn for as long as the script runs
        self.latency_ns = TYPICAL_LATENCY_NS
        self.has_shapes = bool(len(trace.host)) and bool(np.any(trace.host.shapes >= 0))
        self.has_dtypes = bool(len(trace.host)) and bool(np.any(trace.host.dtypes >= 0))
        self.samples: dict[str, list[tuple[tuple[Shape, ...], str, int]]] = {}
        self.speed: DeviceSpeed = data_sheet_speed(self.devices[0].name if self.devices else "")

    @classmethod
    def of(cls, trace: Trace, rank: int = 0) -> Score:
        """Lay out the steps of one rank. A recording without steps becomes one step of one forward segment."""
        score = cls(trace, rank)
        Layout(score, trace, rank).lay_out()
        steady = [i for i, step in enumerate(score.steps) if not _is_warmup(trace, step.row)]
        score.first = list(range(len(score.steps)))
        score.cycle = steady or score.first
        score._sample()
        return score

    def step(self, number: int) -> StepScore:
        """The recorded step that drives replayed step `number` (from 0): in order first, then the steady ones in turn."""
        if number < len(self.first):
            return self.steps[number]
        return self.steps[self.cycle[(number - len(self.first)) % len(self.cycle)]]

    def keys(self, site: Site) -> Keys:
        """The keys of a replayed op, worked out once per site."""
        if site.keys is None:
            dtype = next((dtype for shape, dtype in zip(site.shapes, site.dtypes, strict=True) if shape), "")
            site.keys = self.keys_of(site.op, site.shapes, dtype)
        return site.keys

    def keys_of(self, op: str, shapes: tuple[Shape, ...], dtype: str) -> Keys:
        """The keys of an op given by its first dtype; what the recording lacks is left out of them."""
        dtype = dtype if self.has_dtypes else ""
        canonical = canonical_op(op)
        wide = shapes_text(canonical_shapes(shapes)) if self.has_shapes else "?"
        exact = f"{op}|{shapes_text(shapes)}|{dtype}" if self.has_shapes else ""
        return Keys(exact, f"{canonical}|{wide}|{dtype}", f"{canonical}|{dtype}")

    def _sample(self) -> None:
        """Collect what ops cost, for scaling, and fit the device's speed."""
        fit = []
        for index in self.cycle[:2]:
            step = self.steps[index]
            for segment in step.segments.values():
                for name, instances in segment.named.items():
                    for one in instances:
                        ns = sum(step.kernels[k].duration_ns for k in one.kernels)
                        self.samples.setdefault(name, []).append((one.shapes, one.dtype, ns))
                        fit.append((name.partition("|")[0], one.shapes, one.dtype, ns))
        self.speed = fitted_speed(fit, self.speed)


def _is_warmup(trace: Trace, row: int) -> bool:
    return row >= 0 and int(trace.steps.kind[row]) == StepKind.WARMUP

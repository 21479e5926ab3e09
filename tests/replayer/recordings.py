"""Provides small hand-made recordings and a clock that never sleeps, for tests of the simulator."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from replayer.memory.op_rows import UnresolvedOps
from replayer.op_signature import KeptBySignature, OpSignature
from replayer.recording.recorded_run import RecordedRun
from replayer.timing.host_threads import HostThread
from replayer.timing.simulator import Simulator
from replayer.timing.timeline.host_ranges import HostRanges
from replayer.timing.timeline.timeline_writer import HOST_COLUMNS, WORK_COLUMNS, DeferredRows, LoaderWait, concatenate_rows
from traces.model.trace import (
    NONE,
    Column,
    Device,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    Phases,
    StepKind,
    Steps,
    Strings,
    Thread,
    Trace,
    shapes_text,
)
from traces.script.configuration import ReplayConfig
from traces.script.step_rule import Optimizers

US = 1_000


class FakeClock:
    """Fakes a clock that advances only when a test or a wait advances it. Tests add to `time_ns`."""

    speed = Fraction(1)
    flows, skips_waits = True, False
    ahead_ns: int | None = None
    slept_ns = 0
    _polled_ns: Mapping[int, int] = {}

    def __init__(self, time_ns: int = 1_000_000 * US) -> None:
        self.time_ns = time_ns
        self.waits: list[int] = []
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def now_ns(self) -> int:
        return self.time_ns

    def poll_ns(self) -> int:
        return self.now_ns()

    def has_reached(self, end_ns: int) -> bool:
        return self.time_ns >= end_ns

    def wait_until(self, deadline_ns: int) -> None:
        if deadline_ns > self.time_ns:
            self.waits.append(deadline_ns)
            self.time_ns = deadline_ns


class Log:
    """Fakes a timeline, and stores its rows."""

    def __init__(self) -> None:
        self.strings = Strings()
        self.strings_of = KeptBySignature(self._strings_of)
        self.device: list[dict[str, int]] = []
        self.phases: list[tuple[str, int, int, int, int]] = []
        # Each row has phase, name, thread, start, end, device, start and end on the device, and origin.
        self.parts: list[tuple[int, str, int, int, int, int, int, int, int]] = []
        self.steps: list[tuple[int, int, int]] = []
        self.kinds: list[int] = []
        self.host: list[tuple[int, ...]] = []
        self.waits: list[tuple[int, int, int]] = []  # Each row is a wait for the device: thread, start, end.
        self.memory_rows: list[tuple[int, ...]] = []
        self.ranges = HostRanges()
        self.nodes = array("q")
        self.named: list[tuple[int, str, int, int]] = []  # Each row is a range named by the script: thread, name, start, end.

    @property
    def host_rows(self) -> int:
        return len(self.host)

    def range(self, thread: int, name: str, start_ns: int, end_ns: int) -> None:
        self.named.append((thread, name, start_ns, end_ns))

    def loader_wait(self, wait: LoaderWait) -> None:
        """Ignore the wait, because the script runs no profile."""

    def call(self, thread: int, name: str, start_ns: int, end_ns: int) -> int:
        self.waits.append((thread, start_ns, end_ns))
        return NONE

    def memory(self, table: Column, ops: UnresolvedOps, now_ns: int) -> None:
        self.memory_rows += [tuple(row) for row in table.tolist()]

    def _strings_of(self, signature: OpSignature) -> tuple[int, int, int, int]:
        return (self.strings.add(signature.op), 0, 0, NONE)

    def host_rows_of(self, signatures: Sequence[OpSignature]) -> Column:
        rows = [(NONE, int(HostKind.OP), self.strings_of[signature][0], 0, 0, 0, 0, NONE) for signature in signatures]
        return np.array(rows, np.int64).reshape(-1, len(HOST_COLUMNS))

    def op(self, thread: int, strings: tuple[int, int, int, int], start_ns: int, end_ns: int) -> int:
        name, shapes, dtypes, layout = strings
        self.host.append((thread, int(HostKind.OP), name, start_ns, end_ns - start_ns, shapes, dtypes, layout))
        return len(self.host) - 1

    def op_rows(self, rows: Column | DeferredRows) -> int:
        table = concatenate_rows([rows])
        self.host += [tuple(row) for row in table.tolist()]
        return len(self.host) - len(table)

    def work(self, row: Iterable[int]) -> None:
        self.device.append(dict(zip(WORK_COLUMNS, map(int, row), strict=True)))

    def work_rows(self, rows: Column | DeferredRows) -> None:
        for row in concatenate_rows([rows]).tolist():
            self.work(row)

    def hand_over_if_due(self) -> None:
        pass

    def phase(self, name: str, start_ns: int, end_ns: int, device_start_ns: int, device_end_ns: int, origin: int) -> None:
        self.phases.append((name, start_ns, end_ns, device_start_ns, device_end_ns))

    def stage(self, *row: Any) -> None:
        self.parts.append(row)

    def step(self, number: int, start_ns: int, end_ns: int, kind: int, recorded_step: int) -> None:
        self.steps.append((start_ns, end_ns, recorded_step))
        self.kinds.append(kind)


@dataclass
class Op:
    """Contains a recorded op: its host time, and its kernel or None. The kernel is launched `launch_us` after the start of the
    op."""

    name: str
    start_us: int
    host_us: int
    kernel: tuple[int, int] | None = None  # The start and the duration in us.
    shapes: tuple[tuple[int, ...], ...] = ((4, 4),)
    launch_us: int = 1
    launch_host_us: int = 1
    stream: int = 7
    children: list[Op] = field(default_factory=list)


RecordedPhases = list[tuple[str, int, int]]


def make_recording(phases: RecordedPhases, ops: list[Op], *, steps: int = 1, period_us: int = 0) -> Trace:
    """Return a recording of kernels on one device. All steps have the same ops and phases (name, start, end in us)."""
    return recording_of([(StepKind.STEADY, phases, ops)] * steps, period_us=period_us)


def recording_of(steps: list[tuple[StepKind, RecordedPhases, list[Op]]], *, period_us: int = 0) -> Trace:
    """Return a recording like `make_recording`, but with different steps. Each step begins when the previous step ends, or
    after `period_us`."""
    strings = Strings()
    host: list[dict[str, Any]] = []
    device: list[dict[str, Any]] = []
    dtype = strings.add("float32")
    launch_name = strings.add("cudaLaunchKernel")

    def add(op: Op, base_us: int, parent: int) -> None:
        row = len(host)
        host.append(
            {
                "thread": 0,
                "kind": HostKind.OP,
                "name": strings.add(op.name),
                "start_ns": (base_us + op.start_us) * US,
                "duration_ns": op.host_us * US,
                "parent": parent,
                "shapes": strings.add(shapes_text(op.shapes)),
                "dtypes": dtype,
            }
        )
        for child in op.children:
            add(child, base_us, row)
        if op.kernel is not None:
            start_us, duration_us = op.kernel
            host.append(
                {
                    "thread": 0,
                    "kind": HostKind.RUNTIME,
                    "name": launch_name,
                    "start_ns": (base_us + op.start_us + op.launch_us) * US,
                    "duration_ns": op.launch_host_us * US,
                    "parent": row,
                    "shapes": -1,
                    "dtypes": -1,
                }
            )
            device.append(
                {
                    "device": 0,
                    "stream": op.stream,
                    "kind": DeviceKind.KERNEL,
                    "name": strings.add(f"kernel of {op.name}"),
                    "start_ns": (base_us + start_us) * US,
                    "duration_ns": duration_us * US,
                    "launch": len(host) - 1,
                }
            )

    step_rows, phase_rows = [], []
    base_us = 10_000
    for s, (_, phases, ops) in enumerate(steps):
        end_us = max(end for _, _, end in phases)
        step_rows.append((base_us * US, end_us * US))
        for name, start, end in phases:
            phase_rows.append((s, strings.add(name), (base_us + start) * US, (end - start) * US))
        for op in ops:
            add(op, base_us, -1)
        base_us += period_us or end_us

    def table(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
        return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}

    return Trace(
        grain="kernel",
        strings=strings,
        devices=[Device(0, 0, "Tesla P100-PCIE-16GB", 16 << 30)],
        threads=[Thread(0, 1, "main", "main")],
        steps=Steps.of(
            rank=[0] * len(steps),
            start_ns=[s for s, _ in step_rows],
            duration_ns=[d for _, d in step_rows],
            kind=[kind for kind, _, _ in steps],
        ),
        phases=Phases.of(
            step=[p[0] for p in phase_rows],
            name=[p[1] for p in phase_rows],
            start_ns=[p[2] for p in phase_rows],
            duration_ns=[p[3] for p in phase_rows],
        ),
        host=HostSpans.of(**table(host)),
        device=DeviceSpans.of(**table(device)),
    )


class Stage:
    """Contains a simulator on a fake clock, with one main thread and the default stream."""

    def __init__(
        self, trace: Trace, *, strict: bool = False, pad_loader: bool = False, optimizers: Optimizers | None = None
    ) -> None:
        self.clock = FakeClock()
        self.log = Log()
        self.recording = RecordedRun(trace, min(trace.ranks))
        if optimizers is None:
            optimizers = Optimizers()
            optimizers.add(self)  # The script has one optimizer.
        config = ReplayConfig(strict=strict, loader="recorded" if pad_loader else "real")
        self.simulator = Simulator(self.recording, self.clock, self.log, optimizers, config)  # type: ignore[arg-type]
        self.thread = HostThread(0, self.clock.now_ns())
        self.stream = self.simulator.scheduler.stream(0, 0)
        self._sites: dict[tuple[str, tuple[tuple[int, ...], ...]], OpSignature] = {}

    def op(self, name: str, *shapes: tuple[int, ...]) -> int:
        shapes = shapes or ((4, 4),)
        signature = self._sites.setdefault((name, shapes), OpSignature(name, shapes, ("float32",) * len(shapes)))
        return self.simulator.play(self.thread, self.stream, signature, self.clock.now_ns())

    def within(self, phase: str, *ops: str, wait_us: int = 0) -> None:
        self.simulator.tracker.enter(self.thread, phase)
        for name in ops:
            self.op(name)
        self.clock.time_ns += wait_us * US
        self.simulator.tracker.leave(self.thread, phase)

    def module(self, module: int = 1, *, grad: bool = True) -> None:
        self.simulator.tracker.module_called(self.thread, module, grad)


def phase_recording(phases_ms: dict[str, int], steps: int = 2) -> Trace:
    """Return a phase-grained recording. In each step, these phases follow one another on the host and on the device."""
    phases, at_us = [], 0
    for name, ms in phases_ms.items():
        phases.append((name, at_us, at_us + ms * 1000))
        at_us += ms * 1000
    trace = make_recording(phases, [], steps=steps)
    trace.grain = "phase"
    trace.phases.device = trace.phases.device * 0
    trace.phases.device_start_ns = trace.phases.start_ns.copy()
    trace.phases.device_end_ns = trace.phases.end_ns
    return trace

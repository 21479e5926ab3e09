"""Builds handmade traces of a small training. Each step has a convolution, a loss, a backward op and an optimizer op.

A step takes 100 us: loader 0..20, h2d 20..30, forward 30..50, loss 50..60, backward 60..80, optimizer 80..100. Each phase
except the loader has one op with one runtime call. Its kernel starts 5 us after the call and takes 10 us.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traces.model.machine import DeviceProperties
from traces.model.run import RECORDER, REPLAY, CompiledCode, HostFigures, LoaderSettings, RecorderNotes, ReplayNotes, Run
from traces.model.trace import (
    NONE,
    Batches,
    BatchKind,
    Collectives,
    Device,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    MemoryEvents,
    Origin,
    Parts,
    Phases,
    StepKind,
    Steps,
    Thread,
    Trace,
)
from traces.model.typed_json import fitting
from traces.script.configuration import ReplayConfig

US = 1000
MS = 1000 * US
START_NS = 1_700_000_000 * 10**9 + 123_456
MAIN, BACKWARD = 0, 1
_PHASES = (
    ("loader", 0, 20),
    ("h2d", 20, 30),
    ("forward", 30, 50),
    ("loss", 50, 60),
    ("backward", 60, 80),
    ("optimizer", 80, 100),
)


@dataclass(frozen=True)
class Call:
    op: str
    shapes: str
    start_us: int
    kernel: str
    kind: DeviceKind = DeviceKind.KERNEL
    thread: int = MAIN
    inner: str = ""  # an op inside this op, around the launch


def calls(batch: int) -> list[Call]:
    image = f"{batch},3,8,8"
    return [
        Call("aten::to", image, 21, "Memcpy HtoD (Pageable -> Device)", DeviceKind.MEMCPY, inner="aten::copy_"),
        Call("aten::conv2d", f"{image};4,3,3,3", 31, "volta_sgemm_nn", inner="aten::cudnn_convolution"),
        Call("aten::cross_entropy_loss", f"{batch},10;{batch}", 51, "softmax", inner="aten::_log_softmax"),
        Call("ConvolutionBackward0", f"{batch},4,6,6", 61, "volta_sgemm_tn", thread=BACKWARD),
        Call("aten::add_", "4,3,3,3;4,3,3,3", 81, "vectorized_add"),
    ]


def training(
    steps: int = 4,
    batch: int = 32,
    stretch: float = 1.0,
    made: list[Call] | None = None,
    loader_us: int = 20,
    kernel_us: int = 10,
    jitter_us: tuple[int, ...] = (0,),
) -> Trace:
    """Return the training trace. `stretch` multiplies all times except those of the loader. The optimizer phase of each step is
    longer by the next value of `jitter_us`."""
    trace = Trace(
        devices=[Device(0, 0, "Tesla V100-DGXS-32GB", 32 << 30, DeviceProperties(major=7))],
        threads=[Thread(0, 100, "main", "main"), Thread(0, 200, "autograd", "backward")],
        runs={0: Run("hand", "unix")},
    )
    strings = trace.strings
    runtime = strings.add("cudaLaunchKernel")
    step_rows: list[dict[str, int]] = []
    phase_rows: list[dict[str, int]] = []
    host: list[dict[str, Any]] = []
    device: list[dict[str, Any]] = []
    at_ns = START_NS
    for number in range(steps):
        zero_ns, extra_ns = at_ns, jitter_us[number % len(jitter_us)] * US

        def time_ns(us: float, zero_ns: int = zero_ns) -> int:
            """Return a time within the step in ns. The loader takes `loader_us`, and `stretch` multiplies the times after the
            loader."""
            return zero_ns + round(us / 20 * loader_us * US if us <= 20 else loader_us * US + (us - 20) * stretch * US)

        for name, start, end in _PHASES:
            end_ns = time_ns(end) + (extra_ns if name == "optimizer" else 0)
            row = {"step": number, "name": strings.add(name), "start_ns": time_ns(start)}
            row |= {"duration_ns": end_ns - time_ns(start), "device": 0 if name != "loader" else NONE}
            row |= {"device_start_ns": time_ns(start) if name != "loader" else NONE}
            row |= {"device_end_ns": end_ns + 7 * US if name != "loader" else NONE}
            phase_rows.append(row)
        at_ns = time_ns(100) + extra_ns
        step_rows.append({"rank": 0, "number": number + 5, "start_ns": zero_ns, "duration_ns": at_ns - zero_ns})
        for call in made if made is not None else calls(batch):
            start_ns = time_ns(call.start_us)
            span = {
                "thread": call.thread,
                "start_ns": start_ns,
                "duration_ns": 8 * US,
                "shapes": strings.add(call.shapes),
            }
            span |= {"kind": HostKind.OP, "dtypes": strings.add("float32"), "name": strings.add(call.op), "up": 0}
            host.append(span)
            if call.inner:
                host.append(span | {"name": strings.add(call.inner), "duration_ns": 7 * US, "up": 1})
            launch = {"thread": call.thread, "kind": HostKind.RUNTIME, "name": runtime, "start_ns": start_ns + US}
            host.append(launch | {"duration_ns": US, "shapes": NONE, "dtypes": NONE, "up": 1})
            kernel: dict[str, Any] = {"device": 0, "stream": 7, "kind": call.kind, "name": strings.add(call.kernel)}
            kernel |= {"start_ns": start_ns + 6 * US, "duration_ns": round(kernel_us * US * stretch), "host": host[-1]}
            device.append(kernel | {"bytes": 4096 if call.kind == DeviceKind.MEMCPY else NONE})
    # A trace must contain host spans sorted by thread. The spans of one call are consecutive, and each span is the parent of
    # the next.
    host.sort(key=lambda row: row["thread"])
    rows = {id(row): place for place, row in enumerate(host)}
    trace.steps = Steps.of(**_columns(step_rows))
    trace.phases = Phases.of(**_columns(phase_rows))
    parents = [place - 1 if row["up"] else NONE for place, row in enumerate(host)]
    trace.host = HostSpans.of(parent=parents, **_columns([{k: v for k, v in r.items() if k != "up"} for r in host]))
    launches = [rows[id(row["host"])] for row in device]
    trace.device = DeviceSpans.of(
        launch=launches, **_columns([{k: v for k, v in row.items() if k != "host"} for row in device])
    )
    trace.memory = MemoryEvents.of(
        thread=[MAIN] * 3,
        device=[0, 0, NONE],
        time_ns=[START_NS + 32 * US, START_NS + 42 * US, START_NS + 43 * US],
        bytes=[1 << 20, -(1 << 20), 64],
        address=[4096, 4096, 8192],
        allocated_bytes=[3 << 20, 2 << 20, NONE],
        reserved_bytes=[4 << 20, 4 << 20, NONE],
    )
    return trace


def replay_of(
    recorded: Trace, stretch: float = 1.0, batch: int = 32, compiled: dict[str, Any] | None = None, **notes: Any
) -> Trace:
    """Return a trace like that of a replayer. The ops have the names of PyTorch's dispatcher and launch kernels directly, and
    each step is replayed twice.

    `compiled` contains fields of CompiledCode. `notes` contains fields of ReplayNotes, of its config and of its host figures.
    """
    names = {
        "aten::to": "aten::_to_copy",
        "aten::conv2d": "aten::convolution",
        "aten::cross_entropy_loss": "aten::_log_softmax",
    }
    made = [Call(names.get(c.op, c.op), c.shapes, c.start_us, c.kernel, c.kind) for c in calls(batch)]
    trace = training(2 * len(recorded.steps), stretch=stretch, made=made, loader_us=3)
    trace.steps.recorded_step[:] = [row for row in range(len(recorded.steps)) for _ in range(2)]
    trace.device.launch[:] = trace.host.parent[trace.device.launch]
    trace.device.origin[:] = Origin.EXACT
    copies = trace.device.kind == DeviceKind.MEMCPY
    trace.device.origin[copies] = Origin.SCALED
    notes = {"recording_source": recorded.run_of(0).source, **notes}
    found = replace(fitting(ReplayNotes, notes), config=fitting(ReplayConfig, notes), host=fitting(HostFigures, notes))
    trace.runs = {0: Run(REPLAY, replay=found, compiled=None if compiled is None else fitting(CompiledCode, compiled))}
    return trace


def phase_grained(steps: int = 3) -> Trace:
    """Return a trace with published phase times on the host and the device, and without ops or kernels."""
    trace = training(steps)
    phases = trace.phases
    phases.origin[:] = Origin.PUBLISHED
    return Trace(
        grain="phase",
        strings=trace.strings,
        devices=trace.devices,
        steps=trace.steps,
        phases=phases,
        runs={0: Run("published")},
    )


def data_parallel(steps: int = 6) -> Trace:
    """Return a trace like that of a recorder without a profiler: nn.DataParallel on two devices, a loader with pinning, and an
    all-reduce.

    The stages of each forward pass, in us, are: scatter 31..33, replicate 33..35, a replica on each device 35..47, gather
    47..49. Each step waits 2 us for a batch that took 5 us to pin, and has an all-reduce at 85 us. The first step is warm-up.
    The last two steps are an evaluation step and a profiled step.
    """
    trace = phase_grained(steps)
    strings, starts = trace.strings, trace.steps.start_ns
    trace.devices = [*trace.devices, Device(0, 1, "Tesla V100-DGXS-32GB", 32 << 30, DeviceProperties(major=7))]
    trace.threads = [Thread(0, 100, "main", "main"), Thread(0, 301, "replica", "other"), Thread(0, 302, "replica", "other")]
    trace.steps.kind[:] = [StepKind.WARMUP, *[StepKind.STEADY] * (steps - 3), StepKind.EVALUATION, StepKind.PROFILED]
    trace.phases.origin[:] = Origin.MEASURED
    made = [("scatter", 31, 33, 0, MAIN), ("replicate", 33, 35, 0, MAIN)]
    made += [("parallel_apply", 35, 46, 0, 1), ("parallel_apply", 35, 47, 1, 2), ("gather", 47, 49, 0, MAIN)]
    is_forward = trace.phases.name == strings.find("forward")
    forwards = {int(trace.phases.step[row]): int(row) for row in np.flatnonzero(is_forward)}
    rows = [
        {
            "phase": forwards[step],
            "name": strings.add(name),
            "thread": thread,
            "start_ns": int(starts[step]) + start * US,
            "duration_ns": (end - start) * US,
            "device": device,
            "device_start_ns": int(starts[step]) + start * US,
            "device_end_ns": int(starts[step]) + (end + 1 + device) * US,
        }
        for step in range(steps)
        for name, start, end, device, thread in made
    ]
    trace.parts = Parts.of(**_columns(rows))
    waits = {"kind": [BatchKind.WAIT] * steps, "start_ns": starts + US, "duration_ns": [2 * US] * steps}
    pins = {"kind": [BatchKind.PIN] * steps, "start_ns": starts - 10 * US, "duration_ns": [5 * US] * steps}
    trace.batches = Batches.of(**{k: np.concatenate([waits[k], pins[k]]) for k in waits}, bytes=[50_000] * 2 * steps)
    trace.collectives = Collectives.of(
        name=[strings.add("all_reduce")] * steps,
        backend=[strings.add("nccl")] * steps,
        dtype=[strings.add("float32")] * steps,
        rank=[0] * steps,
        bytes=[4096] * steps,
        start_ns=starts + 85 * US,
        duration_ns=[10 * US] * steps,
    )
    loader = LoaderSettings(workers=4, batch_size=32, prefetch_factor=2, pin_memory=True)
    trace.runs = {0: Run(RECORDER, "unix", loaders=(loader,), recorder=RecorderNotes("0.1", 1500, 0.015))}
    return trace


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}

"""Builds random recordings whose times are multiples of 10 us, so many starts and ends are equal.

    crowded(seed=1)     # six steps on one device, two threads and three streams, as a profiler records them

Such a recording tests whether comparisons of times handle equal times correctly.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.traces.handmade import START_NS, US, _columns
from traces.model.invariants import clear_dangling_references
from traces.model.machine import DeviceProperties
from traces.model.run import KINETO, Run
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
    Phases,
    StepKind,
    Steps,
    Thread,
    Trace,
)

GRID = 10 * US
# Each phase has a name, its start and end in units of 10 us, and the thread of its ops.
PHASES = (("loader", 0, 4, 0), ("forward", 4, 20, 0), ("loss", 20, 24, 0), ("backward", 24, 44, 1), ("optimizer", 44, 52, 0))
STEP = 54
OPS = {
    "forward": ("aten::conv2d", "aten::relu", "aten::linear"),
    "loss": ("aten::nll_loss",),
    "backward": ("ConvolutionBackward0", "AddmmBackward0", "nccl:all_reduce"),
    "optimizer": ("aten::_foreach_add_", "aten::item"),
}
SHAPES = ("32,3,8,8;4,3,3,3", "32,64;64,10", "16,64;64,10")
WAITS = {"aten::item": "cudaMemcpyAsync", "aten::nll_loss": "cudaStreamSynchronize"}


def crowded(seed: int, steps: int = 6, grid_ns: int = GRID) -> Trace:
    """Return a trace in which ops follow each other on each thread, and kernels on each stream. Gaps, durations and streams are
    random."""
    random = Random(seed)
    strings = (trace := Trace()).strings
    trace.devices = [Device(0, 0, "Tesla V100-DGXS-32GB", 32 << 30, DeviceProperties(major=7))]
    trace.threads = [Thread(0, 100, "main", "main"), Thread(0, 200, "autograd", "backward")]
    trace.runs = {0: Run(KINETO, "unix")}
    made: dict[str, list[dict[str, Any]]] = {name: [] for name in ("steps", "phases", "device", "memory", "batches", "comms")}
    threads: tuple[list[dict[str, Any]], ...] = ([], [])
    ready = {7: 0, 20: 0, 24: 0}

    def span(thread: int, kind: HostKind, name: str, at: int, took: int, parent: int, shapes: str = "") -> int:
        row = {"thread": thread, "kind": kind, "name": strings.add(name), "start_ns": at, "duration_ns": took, "parent": parent}
        row["shapes"] = strings.add(shapes) if shapes else NONE
        row["dtypes"] = strings.add(";".join(["float32"] * (shapes.count(";") + 1))) if shapes else NONE
        threads[thread].append(row)
        return len(threads[thread]) - 1

    for number in range(steps):
        zero = number * STEP
        kind = StepKind.WARMUP if number == 0 else StepKind.STEADY
        made["steps"].append({"number": number, "start_ns": zero, "duration_ns": STEP, "kind": kind})
        waited = random.randint(1, 4)
        made["batches"].append({"kind": BatchKind.WAIT, "start_ns": zero, "duration_ns": waited, "bytes": 4096})
        for name, first, last, thread in PHASES:
            begin = max(ready.values())
            made["phases"].append(
                {"step": number, "name": strings.add(name), "start_ns": zero + first, "duration_ns": last - first}
            )
            at = zero + first
            while name != "loader" and at + 2 <= zero + last:
                op, took = random.choice(OPS[name]), random.randint(2, min(4, zero + last - at))
                row = span(thread, HostKind.OP, op, at, took, NONE, random.choice(SHAPES))
                call = span(thread, HostKind.RUNTIME, "cudaLaunchKernel", at + random.randint(0, 1), random.randint(0, 1), row)
                stream = 20 if op == "nccl:all_reduce" else random.choice((7, 7, 7, 24))
                waits_for = random.choice((stream, stream, 7, 24))
                start = max(threads[thread][call]["start_ns"] + random.randint(0, 2), ready[stream], ready[waits_for])
                start += random.choice((0, 0, 1))
                lasts = random.randint(0, 3)
                label = "ncclDevKernel_AllReduce_Sum_f32" if stream == 20 else f"kernel of {op} {random.randint(0, 1)}"
                device = {"stream": stream, "kind": DeviceKind.KERNEL, "name": strings.add(label), "bytes": NONE}
                if op == "aten::item":
                    device |= {"kind": DeviceKind.MEMCPY, "name": strings.add("Memcpy DtoH (Device -> Pageable)"), "bytes": 4}
                made["device"].append(device | {"start_ns": start, "duration_ns": lasts, "call": (thread, call)})
                ready[stream] = start + lasts
                if stream == 20:
                    made["comms"].append({"start_ns": start, "duration_ns": lasts, "bytes": 4096})
                if op in WAITS and ready[stream] <= at + took:
                    begun = threads[thread][call]["start_ns"] + threads[thread][call]["duration_ns"]
                    span(thread, HostKind.RUNTIME, WAITS[op], begun, ready[stream] - begun if ready[stream] > begun else 0, row)
                size = random.choice((512, 1024)) * (1 if random.random() < 0.5 else -1)
                made["memory"].append({"thread": thread, "time_ns": at + 1, "bytes": size})
                at += took + random.choice((0, 0, 1))
            on_device = name != "loader" and max(ready.values()) > begin
            made["phases"][-1] |= {
                "device": 0 if on_device else NONE,
                "device_start_ns": max(begin, zero + first) if on_device else NONE,
                "device_end_ns": max(max(ready.values()), begin, zero + first) if on_device else NONE,
            }
    for rows in (*made.values(), *threads):
        for timed in rows:
            for key in timed.keys() & {"start_ns", "duration_ns", "time_ns", "device_start_ns", "device_end_ns"}:
                if timed[key] != NONE:
                    timed[key] = timed[key] * grid_ns + (0 if key == "duration_ns" else START_NS)
    shift = len(threads[0])
    for called in threads[1]:
        called["parent"] += shift if called["parent"] != NONE else 0
    trace.host = HostSpans.of(**_columns([*threads[0], *threads[1]]))
    launches = [call + (shift if thread else 0) for thread, call in (row.pop("call") for row in made["device"])]
    trace.device = DeviceSpans.of(launch=launches, device=[0] * len(launches), **_columns(made["device"]))
    held = [8192]
    for event in made["memory"]:
        held.append(held[-1] + event["bytes"])
    counts = {"allocated_bytes": held[1:], "reserved_bytes": [1 << 20] * len(held[1:]), "device": [0] * len(held[1:])}
    trace.memory = MemoryEvents.of(address=[4096 + 512 * i for i in range(len(held[1:]))], **counts, **_columns(made["memory"]))
    trace.steps, trace.phases = Steps.of(rank=[0] * steps, **_columns(made["steps"])), Phases.of(**_columns(made["phases"]))
    trace.batches = Batches.of(rank=[0] * steps, loader=[0] * steps, **_columns(made["batches"]))
    names = {name: [strings.add(text)] * len(made["comms"]) for name, text in (("name", "all_reduce"), ("backend", "nccl"))}
    trace.collectives = Collectives.of(rank=[0] * len(made["comms"]), **names, **_columns(made["comms"]))
    return trace


def without(trace: Trace, table: str) -> Trace:
    """Return the trace without the rows of one table, as if the profiler had not recorded them."""
    kept = replace(trace, **{table: type(getattr(trace, table)).empty()})
    clear_dangling_references(kept)
    return kept


def mixed(seed: int, kinds: str) -> Trace:
    """Return a trace with the given kinds of steps. W is WARMUP, S is STEADY, E is EVALUATION and P is PROFILED."""
    trace = crowded(seed, len(kinds))
    by_letter = {kind.name[0]: kind for kind in (StepKind.WARMUP, StepKind.STEADY, StepKind.EVALUATION, StepKind.PROFILED)}
    trace.steps.kind[:] = [by_letter[letter] for letter in kinds]
    return trace

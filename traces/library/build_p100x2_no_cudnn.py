"""Builds p100x2-no-cudnn.msgpack: ResNet-18 under nn.DataParallel on two Tesla P100 without cuDNN, from published figures.

    python -m traces.library.build_p100x2_no_cudnn

The other column of the table that build_p100_no_cudnn.py takes its figures from; the same holds for it. The parts of
nn.DataParallel were published too, and are rows of the trace's `parts`.

Note [Medians that do not add up]
    The published median of the compute side of a step is 775.7 ms, but the medians of its phases add up to 779.8 ms. So they
    cannot all be phases of one step. Here every phase is shortened by the same 0.5 % (in whole tenths of a millisecond), and
    the step is the published one, for the difference from one GPU is what the study is about.

Note [What gather waits for]
    The published parts of forward add up to 8.5 ms more than forward, which is just what gather takes. To collect 512 kB takes
    some 0.05 ms over PCIe; so most of gather must be waiting for replicas that are still computing. It is laid out so: the
    host is in gather for the published 8.5 ms, the last of forward, and the replicas compute for the published 255.5 ms on
    their devices. What is left of the host's time is that of parallel_apply, and what is left of the device's is gather's.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from traces.file import save
from traces.library import build_p100_no_cudnn, entries
from traces.library.build_p100_no_cudnn import DEVICE
from traces.model import Origin, Parts, Phases, PhaseTiming, StepKind, Steps, Thread, Trace
from traces.run import Run

# In tenths of a millisecond. Published: 0.3, 270.1, 0.5, 503.7, 5.5; see Note [Medians that do not add up].
STEADY_PHASES = {"h2d": 3, "forward": 2687, "loss": 5, "backward": 5010, "optimizer": 55}
FIRST_BATCH = (34660, 37270)  # the least and the most of the runs

# The parts as published, but for what Note [What gather waits for] says.
SCATTER, REPLICATE, REPLICA, GATHER = 67, 62, 2555, 85
GATHER_BACKWARD, BROADCAST_BACKWARD = 22, 57
_NS = 100_000  # per tenth of a millisecond

DEVICES = [DEVICE, replace(DEVICE, index=1)]
THREADS = [Thread(0, 0, "MainThread", "main"), Thread(0, 1, "replica 0"), Thread(0, 2, "replica 1")]

PROVENANCE: dict[str, Any] = {
    "kind": "published",
    "study": build_p100_no_cudnn.PROVENANCE["study"],
    "figures": "medians in ms computed from the raw logs of the study's inter-GPU part, column '2 GPUs, batch 256'",
    "workload": {**build_p100_no_cudnn.PROVENANCE["workload"], "batch_size": 256, "gpus": 2, "parallel": "nn.DataParallel"},
    "notes": [
        "The published medians of forward, criterion, backward and optimizer (270.1, 0.5, 503.7 and 5.5 ms) add up to 779.8 ms;"
        " the published median of their sum is 775.7 ms. Each is shortened by 0.5 % here, so that the step is as published.",
        "The published parts of forward (scatter 6.7, replicate 6.2, parallel_apply 257.2, gather 8.5 ms) add up to 8.5 ms more"
        " than forward. Scatter and replicate, gather's time on the host and the replicas' on their devices (255.5 ms) are"
        " kept; that gather spends its time waiting for the replicas is our reading. The call's 257.2 ms have no place then.",
        "Where in backward its two parts lie is not published: the scatter of gradients is placed at the beginning and"
        " ReduceAddCoalesced at the end, as the order of the graph has it. What the second device does between is not told.",
        "The first batch took 3466 to 3727 ms; the warm-up step takes the middle, 3596.5 ms. The study does not say which phase"
        " was slow then: all of the excess of 2820.5 ms over the steady step is placed in forward, in the replicas, by us.",
        *build_p100_no_cudnn.PROVENANCE["notes"][2:],
    ],
}  # fmt: skip


def build() -> Trace:
    """The warm-up step and one steady step, in phases and parts."""
    trace = Trace(
        grain="phase",
        devices=list(DEVICES),
        threads=list(THREADS),
        runs={0: Run(clock="zero is the start of the first step")},
        provenance=PROVENANCE,
        workload=build_p100_no_cudnn.workload(256),
    )
    trace.phase_timing = PhaseTiming.SYNCHRONIZED
    trace.lacks = list(build_p100_no_cudnn.LACKS)
    excess = sum(FIRST_BATCH) // 2 - sum(STEADY_PHASES.values())
    steps: dict[str, list[int]] = {"start_ns": [], "duration_ns": []}
    phases: dict[str, list[int]] = {"step": [], "name": [], "start_ns": [], "duration_ns": []}
    parts: dict[str, list[int]] = {key: [] for key in Parts.DTYPES}
    now = 0  # in tenths of a millisecond

    def part(name: str, device: int, thread: int, host: tuple[int, int], on_device: tuple[int, int]) -> None:
        row = {
            "phase": len(phases["step"]),
            "name": trace.strings.add(name),
            "thread": thread,
            "start_ns": host[0] * _NS,
            "duration_ns": (host[1] - host[0]) * _NS,
            "device": device,
            "device_start_ns": on_device[0] * _NS,
            "device_end_ns": on_device[1] * _NS,
            "origin": Origin.PUBLISHED,
        }
        for column, value in row.items():
            parts[column].append(value)

    def main(name: str, start: int, end: int) -> None:
        part(name, 0, 0, (start, end), (start, end))

    def parts_of(phase: str, start: int, end: int, more: int) -> None:
        """Of a phase that lasts from `start` to `end`, in which the replicas take `more` time than in others."""
        if phase == "forward":
            scattered = start + SCATTER
            applied = scattered + REPLICATE
            computed = applied + REPLICA + more
            main("scatter", start, scattered)
            main("replicate", scattered, applied)
            for device in range(len(DEVICES)):
                part("parallel_apply", device, 1 + device, (applied, end - GATHER), (applied, computed))
            part("gather", 0, 0, (end - GATHER, end), (computed, end))
        elif phase == "backward":
            main("gather_backward", start, start + GATHER_BACKWARD)
            main("broadcast_backward", end - BROADCAST_BACKWARD, end)

    for step, more in enumerate([excess, 0]):
        steps["start_ns"].append(now * _NS)
        for name, tenths in (STEADY_PHASES | {"forward": STEADY_PHASES["forward"] + more}).items():
            parts_of(name, now, now + tenths, more)
            phases["step"].append(step)
            phases["name"].append(trace.strings.add(name))
            phases["start_ns"].append(now * _NS)
            phases["duration_ns"].append(tenths * _NS)
            now += tenths
        steps["duration_ns"].append(now * _NS - steps["start_ns"][-1])
    trace.steps = Steps.of(number=[0, 1], kind=[StepKind.WARMUP, StepKind.STEADY], rank=[0, 0], **steps)
    rows = len(phases["step"])
    trace.phases = Phases.of(device=[0] * rows, origin=[Origin.PUBLISHED] * rows, **phases)
    trace.phases.device_start_ns = trace.phases.start_ns.copy()
    trace.phases.device_end_ns = trace.phases.end_ns
    trace.parts = Parts.of(**parts)
    return trace


if __name__ == "__main__":
    target = next(entry.path for entry in entries() if entry.name == "p100x2-no-cudnn")
    save(build(), target)
    print(f"wrote {target}", file=sys.stderr)

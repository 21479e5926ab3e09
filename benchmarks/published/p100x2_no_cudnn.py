"""Builds p100x2-no-cudnn.msgpack, a trace of ResNet-18 with nn.DataParallel on two Tesla P100 without cuDNN, from published
step times.

    python -m benchmarks.published.p100x2_no_cudnn

The times come from the same table as in p100_no_cudnn.py, but from the column for two GPUs. The study also published times of
the nn.DataParallel stages, which become the rows of the trace's table `parts`.

Note [Medians that do not add up]
    The published median of a step's compute side is 775.7 ms. The medians of its phases add up to 779.8 ms, so they cannot all
    be phases of one step. The trace shortens every phase by the same 0.5 % (in whole tenths of a millisecond). The step time is
    the published one, because the study is about its difference from one GPU.

Note [What gather waits for]
    The published parts of forward add up to 8.5 ms more than forward, which is exactly gather's time. Collecting 512 kB takes
    about 0.05 ms over PCIe, so most of gather must be waiting for replicas that still compute. In the trace, the host is in
    gather for the published 8.5 ms at the end of forward. The replicas compute for the published 255.5 ms on their devices. The
    rest of the host's time goes to parallel_apply, and the rest of the device's time goes to gather.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from benchmarks.published import p100_no_cudnn
from benchmarks.published.p100_no_cudnn import DEVICE, NS, steps_of
from traces.format.trace_file import save
from traces.library import entries
from traces.library.cell_traces import add_steps
from traces.model.run import Run
from traces.model.trace import Origin, Parts, PhaseTiming, StepKind, Thread, Trace

# In tenths of a millisecond; published: 0.3, 270.1, 0.5, 503.7, 5.5 ms, see Note [Medians that do not add up]
STEADY_PHASES = {"h2d": 3, "forward": 2687, "loss": 5, "backward": 5010, "optimizer": 55}
FIRST_BATCH = (34660, 37270)  # minimum and maximum over the runs

# published values, changed as described in Note [What gather waits for]
SCATTER, REPLICATE, REPLICA, GATHER = 67, 62, 2555, 85
GATHER_BACKWARD, BROADCAST_BACKWARD = 22, 57

DEVICES = [DEVICE, replace(DEVICE, index=1)]
THREADS = [Thread(0, 0, "MainThread", "main"), Thread(0, 1, "replica 0"), Thread(0, 2, "replica 1")]

PROVENANCE: dict[str, Any] = {
    "kind": "published",
    "study": p100_no_cudnn.PROVENANCE["study"],
    "figures": "medians in ms computed from the raw logs of the study's inter-GPU part, column '2 GPUs, batch 256'",
    "workload": {**p100_no_cudnn.PROVENANCE["workload"], "batch_size": 256, "gpus": 2, "parallel": "nn.DataParallel"},
    "notes": [
        "The published medians of forward, criterion, backward and optimizer (270.1, 0.5, 503.7 and 5.5 ms) add up to 779.8 ms;"
        " the published median of their sum is 775.7 ms. Each is shortened by 0.5 % here, so that the step is as published.",
        "The published parts of forward (scatter 6.7, replicate 6.2, parallel_apply 257.2, gather 8.5 ms) add up to 8.5 ms more"
        " than forward. We assume that gather waits for the replicas. The times of scatter and replicate, gather's time on the"
        " host and the replicas' time on their devices (255.5 ms) are kept. The 257.2 ms of parallel_apply are not used.",
        "The study does not say when the two parts of backward run. The scatter of gradients is placed at the start and"
        " ReduceAddCoalesced at the end, in the order of the graph. The second device's work in between is not published.",
        "The first batch took 3466 to 3727 ms; the warm-up step uses the middle, 3596.5 ms. The study does not say which phase"
        " was slow, so we add the whole excess over the steady step, 2820.5 ms, to the replicas' forward pass.",
        *p100_no_cudnn.PROVENANCE["notes"][2:],
    ],
}  # fmt: skip


def build() -> Trace:
    """Build the trace with the warm-up step and one normal step, divided into phases and stages of nn.DataParallel."""
    trace = Trace(
        grain="phase",
        devices=list(DEVICES),
        threads=list(THREADS),
        runs={0: Run(clock="zero is the start of the first step")},
        provenance=PROVENANCE,
        workload=p100_no_cudnn.workload(256),
    )
    trace.phase_timing = PhaseTiming.SYNCHRONIZED
    trace.lacks = list(p100_no_cudnn.LACKS)
    excess = sum(FIRST_BATCH) // 2 - sum(STEADY_PHASES.values())
    add_steps(trace, steps_of(STEADY_PHASES, excess), Origin.PUBLISHED, StepKind.WARMUP)
    phases = trace.phases
    rows: list[tuple[int, ...]] = []

    def part(phase: int, name: str, device: int, thread: int, host: tuple[int, int], on_device: tuple[int, int]) -> None:
        took_ns = host[1] - host[0]
        rows.append((phase, trace.strings.add(name), thread, host[0], took_ns, device, *on_device, Origin.PUBLISHED))

    def main(phase: int, name: str, start: int, end: int) -> None:
        part(phase, name, 0, 0, (start, end), (start, end))

    for phase, (step, name, start, end) in enumerate(
        zip(*(column.tolist() for column in (phases.step, phases.name, phases.start_ns, phases.end_ns)), strict=True)
    ):
        if trace.strings[name] == "forward":
            scattered = start + SCATTER * NS
            applied = scattered + REPLICATE * NS
            computed = applied + (REPLICA + (0 if step else excess)) * NS
            gathers = end - GATHER * NS
            main(phase, "scatter", start, scattered)
            main(phase, "replicate", scattered, applied)
            for device in range(len(DEVICES)):
                part(phase, "parallel_apply", device, 1 + device, (applied, gathers), (applied, computed))
            part(phase, "gather", 0, 0, (gathers, end), (computed, end))
        elif trace.strings[name] == "backward":
            main(phase, "gather_backward", start, start + GATHER_BACKWARD * NS)
            main(phase, "broadcast_backward", end - BROADCAST_BACKWARD * NS, end)
    trace.parts = Parts.of(**dict(zip(Parts.DTYPES, zip(*rows, strict=True), strict=True)))
    return trace


if __name__ == "__main__":
    target = next(entry.path for entry in entries() if entry.name == "p100x2-no-cudnn")
    save(build(), target)
    print(f"wrote {target}", file=sys.stderr)

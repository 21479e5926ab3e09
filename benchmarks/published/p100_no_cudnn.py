"""Builds p100-no-cudnn.msgpack, a trace of ResNet-18 on one Tesla P100 without cuDNN, from published step times.

    python -m benchmarks.published.p100_no_cudnn

The study synchronized the device around each phase, so each phase takes the same time on the host and on the device. The study
published only medians, without kernels or memory events. The trace contains nothing but the published times. PROVENANCE
describes each choice that was necessary.

Note [What the study trained]
    The study names the network and the batch size. The rest of `workload` follows from its figures. Copying 128 images takes
    6.35 ms at 12.1 GB/s, and 256 images are 154 MB to scatter. An image is therefore 3x224x224 in float32. Gather collects 256
    x 1000 values, so there are 1000 classes. ResNet-18 with 1000 classes has 11 689 512 parameters (He et al. 2015, as in
    torchvision). The optimizer is unknown, and module class names depend on the implementation. Both are left out and not
    compared.
"""

from __future__ import annotations

import sys
from typing import Any

from traces.format.trace_file import save
from traces.library import entries
from traces.library.cell_traces import add_steps
from traces.model.machine import DeviceProperties
from traces.model.run import Run
from traces.model.trace import Device, Origin, PhaseTiming, StepKind, Trace
from traces.model.workload import InputTensor, WorkloadSignature

# published medians over batches, in tenths of a millisecond
STEADY_PHASES = {"h2d": 65, "forward": 2547, "loss": 3, "backward": 4951, "optimizer": 31}
FIRST_BATCH = (11910, 12350)  # minimum and maximum over the runs
NS = 100_000  # nanoseconds per tenth of a millisecond

DEVICE = Device(
    rank=0,
    index=0,
    name="Tesla P100-PCIE-16GB",
    total_memory_bytes=17_071_734_784,
    properties=DeviceProperties(
        major=6,
        minor=0,
        multi_processor_count=56,
        warp_size=32,
        max_threads_per_block=1024,
        max_threads_per_multi_processor=2048,
    ),
)

PROVENANCE: dict[str, Any] = {
    "kind": "published",
    "study": "GPU Emulator for Easy Reproducibility of DNN Training (Summer of Reproducibility 2023)",
    "figures": "medians in ms computed from the raw logs of the study's inter-GPU part, column '1 GPU, batch 128'",
    "workload": {
        "model": "resnet18",
        "batch_size": 128,
        "gpus": 1,
        "loader_workers": 4,
        "cudnn": False,
        "synchronised": "the device, around every phase",
    },
    "notes": [
        "The published median of the whole step is 758.9 ms; the medians of its phases add up to 759.7 ms. The phases"
        " are kept, and the steady step is their sum.",
        "The first batch took 1191 to 1235 ms; the warm-up step uses the middle, 1213 ms. The study does not say which"
        " phase was slow, so we add the whole excess over the steady step, 453.3 ms, to the forward phase.",
        "Only medians are published: there is one steady step, without spread.",
        "The total memory and the properties are those that CUDA's deviceQuery prints for a Tesla P100-PCIE-16GB"
        " (16281 MBytes, 17071734784 bytes; 56 multiprocessors; capability 6.0), from public logs, not from the study.",
        "The workload signature is derived from the study's figures. Images are 3x224x224 in float32, because 128 images take"
        " 6.35 ms at 12.1 GB/s and 256 images have 154 MB. There are 256 x 1000 outputs, so there are 1000 classes. ResNet-18"
        " with 1000 classes has 11 689 512 parameters. The study does not give the optimizer and the classes of modules.",
    ],
}

RESNET18_PARAMETERS = 11_689_512


def workload(batch: int) -> WorkloadSignature:
    """Return the workload signature. See Note [What the study trained]."""
    images = InputTensor((batch, 3, 224, 224), "float32")
    return WorkloadSignature(parameters=RESNET18_PARAMETERS, parameter_bytes=4 * RESNET18_PARAMETERS, inputs=(images,))


LACKS = ["kernels", "host ops", "data-loading waits", "memory events", "recorded values", "spread of the step times"]


def steps_of(steady: dict[str, int], excess: int) -> list[dict[str, int]]:
    """Return the phases of a warm-up step and of a normal step, in nanoseconds. The warm-up step's forward phase takes `excess`
    longer.
    """
    warmup = steady | {"forward": steady["forward"] + excess}
    return [{name: tenths * NS for name, tenths in phases.items()} for phases in (warmup, steady)]


def build() -> Trace:
    """Build the trace with the warm-up step and one normal step, divided into phases."""
    excess = sum(FIRST_BATCH) // 2 - sum(STEADY_PHASES.values())
    trace = Trace(
        grain="phase",
        devices=[DEVICE],
        runs={0: Run(clock="zero is the start of the first step")},
        provenance=PROVENANCE,
        lacks=list(LACKS),
        workload=workload(128),
    )
    trace.phase_timing = PhaseTiming.SYNCHRONIZED
    add_steps(trace, steps_of(STEADY_PHASES, excess), Origin.PUBLISHED, StepKind.WARMUP)
    return trace


if __name__ == "__main__":
    target = next(entry.path for entry in entries() if entry.name == "p100-no-cudnn")
    save(build(), target)
    print(f"wrote {target}", file=sys.stderr)

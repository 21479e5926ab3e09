"""Computes the step times of a network from recordings at several batch sizes (`trace record --sweep`).

    gpu = gpu_of(trace)                             # Gpu("v100-sxm2-16gb", "Tesla V100-SXM2-16GB", ...)
    cell = cell_of([(trace, 32), (other, 64)], gpu, "resnet50")
    step_times_of(trace)                            # RunOfCell(batch=32, phases_ns={"forward": ...}, spread_ns=..., steps=12)

Warm-up steps and profiled steps are ignored. Phase times are medians over all steps, measured with CUDA events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.figures.measure import memory_peaks, phase_times, steady_steps
from traces.library.cells import PHASES, CellSource, Gpu, LibraryCell
from traces.library.matching import batch_of
from traces.model.trace import Trace, TraceLibraryError
from traces.model.typed_json import to_json

_NAMELESS = {"nvidia", "amd", "tesla", "quadro", "geforce", "instinct", "graphics"}
# provenance of how the recording was made
_KEPT = ("date", "package")
_KEPT_OF_RUN = ("script", "argv", "recorder")


@dataclass(frozen=True)
class RunOfCell:
    batch: int
    phases_ns: Mapping[str, int]
    spread_ns: Mapping[str, int]
    peak_bytes: int | None
    steps: int


def gpu_of(trace: Trace, known: Sequence[Gpu] = ()) -> Gpu:
    """Return the GPU of a recording: one of the GPUs in `known`, or a new `Gpu` object. Raises TraceLibraryError if the
    recording contains no GPU."""
    if not trace.devices:
        raise TraceLibraryError("the recording contains no GPU")
    device = trace.devices[0]
    for gpu in known:
        if gpu.device == device.name:
            return gpu
    words = [word for word in re.findall(r"[a-z0-9]+", device.name.lower()) if word not in _NAMELESS]
    return Gpu("-".join(words) or "gpu", device.name, max(device.total_memory_bytes, 0))


def step_times_of(trace: Trace) -> RunOfCell:
    """Return the step times of a recording. Raises TraceLibraryError."""
    if trace.workload is None or trace.workload.parameters is None:
        raise TraceLibraryError("the recording has no workload signature, so the trained model is unknown; record it again")
    batch = batch_of(trace.workload)
    if batch is None:
        raise TraceLibraryError("the inputs of the recorded model do not share a batch size")
    steps = steady_steps(trace)
    phases = {name: of.device_ns for name, of in phase_times(trace).items() if name in PHASES}
    times = {name: of[steps] for name, of in phases.items() if of is not None and of[steps].any()}
    if "forward" not in times or not len(steps):
        raise TraceLibraryError("no training step after the warm-up has GPU times of the forward pass")
    peaks = [peak.peak_allocated_bytes for peak in memory_peaks(trace).values()]
    return RunOfCell(
        batch,
        {name: round(float(np.median(of))) for name, of in times.items()},
        {name: round(float(np.std(of))) for name, of in times.items()},
        max(peaks, default=None),
        len(steps),
    )


def cell_of(
    traces: Sequence[Trace],
    gpu: Gpu,
    model: str,
    out_of_memory_batch: int | None = None,
    notes: Mapping[str, Any] | None = None,
) -> LibraryCell:
    """Compute a network's step times from recordings at several batch sizes. Raises TraceLibraryError."""
    rows = {row.batch: row for row in map(step_times_of, traces)}
    ordered = [rows[batch] for batch in sorted(rows)]
    names = [name for name in PHASES if any(name in row.phases_ns for row in ordered)]
    with_peak = [row for row in ordered if row.peak_bytes is not None]
    first = traces[0]
    assert first.workload is not None
    machine, run = first.machine_of(0), first.run_of(0)
    software = {"torch": machine.torch, "cuda": machine.cuda, "cudnn": machine.cudnn, "driver": machine.driver}
    provenance = {
        "protocol": "trace record: medians of clean steady steps between CUDA events, the host not synchronised",
        "software": {name: of for name, of in software.items() if of is not None},
        "settings": {name: of for name, of in vars(machine.settings).items() if of is not None},
        **{name: of for name, of in to_json(run).items() if name in _KEPT_OF_RUN},
        **{name: of for name, of in first.provenance.items() if name in _KEPT},
        "steps": {str(row.batch): row.steps for row in ordered},
        **(notes or {}),
    }
    return LibraryCell(
        gpu,
        model,
        first.workload.at_batch(1, step_times_of(first).batch),
        np.array([row.batch for row in ordered]),
        {name: np.array([row.phases_ns.get(name, 0) for row in ordered]) for name in names},
        {name: np.array([row.spread_ns.get(name, 0) for row in ordered]) for name in names},
        memory_batches=np.array([row.batch for row in with_peak], np.int64),
        peak_bytes=np.array([row.peak_bytes for row in with_peak], np.int64),
        out_of_memory_batch=out_of_memory_batch,
        source=CellSource(
            kind="recorded",
            source=run.source,
            grain=first.grain,
            torch=machine.torch,
            virtual_gpu=run.virtual_gpu,
        ),
        provenance=provenance,
    )

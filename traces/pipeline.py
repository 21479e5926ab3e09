"""What a recording tells of the run around the GPU's work: kinds of steps, the input pipeline, collectives, parallel parts.

    input_pipeline(trace)["wait_per_step_ns"]       # 2100000: what a step waited for its batch, median
    collectives(trace)[0]                           # {"name": "all_reduce", "backend": "nccl", "count": 40, ...}

Facts as plain JSON values for `traces.summary`; each is empty or None where the recording does not have it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.measure import steady_steps, step_windows
from traces.model import NONE, Batches, BatchKind, Column, Ending, StepKind, Trace
from traces.spread import median
from traces.time_windows import TimeWindows


def step_kinds(trace: Trace) -> dict[str, dict[str, int | None]]:
    """How many steps of each kind there are, and their median; kinds without steps are left out."""
    durations = {kind: trace.steps.duration_ns[trace.steps.kind == kind] for kind in StepKind}
    return {
        kind.name.lower(): {"count": len(duration_ns), "median_ns": median(duration_ns)}
        for kind, duration_ns in durations.items()
        if len(duration_ns)
    }


def input_pipeline(trace: Trace) -> dict[str, Any] | None:
    """Waits for batches and pinning of batches; None if neither was recorded and no loader is described.

    `wait_per_step_ns` is the median over the steps that `steady_steps` takes. `pin_bytes_per_s` counts pins of known size.
    """
    described = trace.provenance_of(trace.ranks[0]).get("loaders")
    loaders = [loader for loader in described if isinstance(loader, dict)] if isinstance(described, list) else []
    waits = trace.batches.take(trace.batches.kind == BatchKind.WAIT)
    pins = trace.batches.take(trace.batches.kind == BatchKind.PIN)
    if not len(trace.batches) and not loaders:
        return None
    sized = pins.take((pins.bytes != NONE) & (pins.duration_ns > 0))
    return {
        "loaders": loaders,
        "waits": len(waits),
        "wait_median_ns": median(waits.duration_ns),
        "wait_total_ns": int(waits.duration_ns.sum()),
        "wait_per_step_ns": median(_per_step(trace, waits)[steady_steps(trace)]) if len(waits) else None,
        "batch_bytes": median(waits.bytes[waits.bytes != NONE]),
        "pins": len(pins),
        "pin_median_ns": median(pins.duration_ns),
        "pin_bytes_per_s": round(int(sized.bytes.sum()) / int(sized.duration_ns.sum()) * 1e9) if len(sized) else None,
    }


def _per_step(trace: Trace, waits: Batches) -> Column:
    """The time waited in each step."""
    waited_ns = np.zeros(len(trace.steps), dtype=np.int64)
    step = step_windows(trace).holding(waits.start_ns, waits.rank)
    np.add.at(waited_ns, step[step != NONE], waits.duration_ns[step != NONE])
    return waited_ns


def batches_there_ns(trace: Trace, rank: int, start_ns: Column, end_ns: Column) -> Column:
    """For each of a rank's phases, given by start and end, when the last batch that was waited for in it was there; the
    phase's own end where no wait was recorded."""
    waits = trace.batches.take((trace.batches.kind == BatchKind.WAIT) & (trace.batches.rank == rank))
    there_ns: Column = np.zeros(len(start_ns), dtype=np.int64)
    phase = TimeWindows(start_ns, end_ns).holding(waits.start_ns)
    np.maximum.at(there_ns, phase[phase != NONE], waits.end_ns[phase != NONE])
    return np.asarray(np.where(there_ns > start_ns, np.minimum(there_ns, end_ns), end_ns))


def collectives(trace: Trace) -> list[dict[str, Any]]:
    """By operation and backend, most time first, summed over ranks. `bytes` is None if no row's is known.

    Of `timed` operations the end was seen. `duration_ns` is the sum of theirs and of the most that others can have lasted
    (`bounded`, see `Ending.BY`); `median_ns` is of what was seen, else of such bounds, and None where neither is.
    """
    table, texts = trace.collectives, trace.strings
    found = []
    for name, backend in sorted(set(zip(table.name.tolist(), table.backend.tolist(), strict=True))):
        rows = table.take((table.name == name) & (table.backend == backend))
        sizes = rows.bytes[rows.bytes != NONE]
        seen, bounds = (rows.duration_ns[rows.ending == ending] for ending in (Ending.SEEN, Ending.BY))
        found.append(
            {
                "name": texts[name],
                "backend": texts[backend],
                "count": len(rows),
                "bytes": int(sizes.sum()) if len(sizes) else None,
                "timed": len(seen),
                "bounded": len(bounds),
                "duration_ns": int(seen.sum() + bounds.sum()),
                "median_ns": median(seen if len(seen) else bounds),
            }
        )
    return sorted(found, key=lambda row: (-row["duration_ns"], row["name"]))


def parallel_parts(trace: Trace) -> list[dict[str, Any]]:
    """The parts of nn.DataParallel by name and device, in the order of their first start; medians over the parts in the steps
    that `steady_steps` takes, or over all where none is in those."""
    phase_step = np.append(trace.phases.step, NONE)[trace.parts.phase]
    steady = np.isin(phase_step, steady_steps(trace))
    parts = trace.parts.take(steady) if steady.any() else trace.parts
    keys = list(zip(parts.name.tolist(), parts.device.tolist(), strict=True))
    found = []
    for name, device in sorted(dict.fromkeys(keys), key=lambda key: int(parts.start_ns[keys.index(key)])):
        rows = parts.take((parts.name == name) & (parts.device == device))
        timed = rows.take((rows.device_start_ns != NONE) & (rows.device_end_ns != NONE))
        found.append(
            {
                "name": trace.strings[name],
                "device": trace.device_label(device) if device != NONE else None,
                "count": len(rows),
                "median_ns": median(rows.duration_ns),
                "device_median_ns": median(timed.device_end_ns - timed.device_start_ns),
            }
        )
    return found


def told(trace: Trace, fact: str) -> dict[str, Any] | None:
    """A group of facts of the provenance ("recorder", "clean", "host_scale"), or None if it is not there or no group."""
    facts = trace.provenance.get(fact)
    return dict(facts) if isinstance(facts, dict) and facts else None

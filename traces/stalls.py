"""Where a training step waits for data: in the disk, in preparing, in pinning; by the difference of three runs.

    stalls = Stalls(gpu=pace(synthetic, 128), prepared=pace(cached, 128), fetched=pace(cold, 128), ...)
    stalls.preparation_share      # 0.74: of a step whose data is cached, what is waiting
    stalls.bottleneck             # Bottleneck.PREPARATION

The method is that of "Analyzing and Mitigating Data Stalls in DNN Training" (VLDB 2021): the GPU's own rate G with one batch
that is ready in memory, P with data that is cached, F with a cold cache or one of a share of the data set. What P loses
against G is the preparation stall, what F loses against P the fetch stall. No pipeline is faster than its slowest stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from traces.loader_model import BatchCost, LoaderRun, loaded
from traces.measure import phase_times
from traces.model import StepKind, Trace, TraceError
from traces.storage_server import Loading

_NOTICEABLE = 0.02  # of a step: less than that is no stall, but a run's noise
MOST_WORKERS = 128


class Bottleneck(StrEnum):
    GPU = "gpu"
    STORAGE = "storage"
    PREPARATION = "preparation"
    PINNING = "pinning"


@dataclass(frozen=True)
class Pace:
    """How fast a run went once it had its pace; means per step."""

    steps: int
    step_ns: int
    wait_ns: int  # of it, in the script's waits for a batch
    samples_per_s: float


@dataclass(frozen=True)
class Modelled:
    """What the model of the loader says of another machine."""

    workers: int
    cores: int
    samples_per_s: float
    wait_share: float


@dataclass(frozen=True)
class Stalls:
    """Of one script. Shares are of a step's time."""

    gpu: Pace
    prepared: Pace
    fetched: Pace | None  # None where no storage was modelled
    batch_samples: float
    workers: int
    batch_cpu_ns: int  # one worker's work for one batch
    batch_bytes: int  # read for one batch
    batch_missed_bytes: int | None  # of it, what the cache did not hold
    batch_pin_ns: int | None
    data_set_bytes: int | None  # estimated: samples of the data set times bytes per sample
    bottleneck: Bottleneck
    check: Modelled | None  # the model for this machine, to be compared with `prepared`; None without workers
    enough: Modelled | None  # the fewest workers, each on a core, that end the preparation stall
    by_cores: list[Modelled]
    disk_bytes_per_s: float | None  # that ends the fetch stall
    notes: list[str]

    @property
    def preparation_share(self) -> float:
        return _share(self.prepared.step_ns, self.gpu.step_ns)

    @property
    def fetch_share(self) -> float | None:
        return None if self.fetched is None else _share(self.fetched.step_ns, self.prepared.step_ns)


def _share(step_ns: int, without_ns: int) -> float:
    return max(1 - without_ns / step_ns, 0.0) if step_ns else 0.0


def pace(trace: Trace, batch_samples: float, workers: int) -> Pace:
    """Of the steps after those that lived on what was prefetched. Raises TraceError where too few are left."""
    rows = np.flatnonzero((trace.steps.kind != StepKind.EVALUATION) & (trace.steps.kind != StepKind.INCOMPLETE))
    first = max(2 * workers + 1, 2, len(rows) // 5)
    if len(rows) < first + 4:
        raise TraceError(f"{len(rows)} steps show no pace with {workers} workers; let the script train {first + 4} or more")
    ends_ns = trace.steps.end_ns[rows]
    waits = phase_times(trace).get("loader")
    wait_ns = 0 if waits is None else int(waits.host_ns[rows[first:]].mean())
    step_ns = int(ends_ns[-1] - ends_ns[first - 1]) // (len(rows) - first)
    return Pace(len(rows), step_ns, wait_ns, batch_samples / step_ns * 1e9)


def stalls_of(
    gpu: Trace, prepared: Trace, cached: Loading, workers: int, cores: int, core_counts: list[int],
    fetched: Trace | None = None, cold: Loading | None = None,
) -> Stalls:  # fmt: skip
    """`cached` and `cold` are what the storage was told in the runs `prepared` and `fetched`. `workers` is the loader's number
    on this machine of `cores` cores; `core_counts` are machines to be modelled, a worker on each core.

    Raises TraceError for a script that loads nothing with a DataLoader, or trains too few steps.
    """
    if not cached.batches:
        raise TraceError("no DataLoader fetched a batch, so there is no loading to measure")
    batches, samples = cached.batches, cached.samples / cached.batches
    paces = [pace(trace, samples, workers) for trace in (gpu, prepared)]
    late = None if fetched is None else pace(fetched, samples, workers)
    cost = BatchCost(cached.cpu_ns // batches)
    step_ns = paces[0].step_ns
    host_ns = cached.script_cpu_ns // cached.script_batches if cached.script_batches else 0

    def modelled(count: int, on: int, host_ns: int = 0) -> Modelled:
        run: LoaderRun = loaded(cost, workers=count, cores=on, step_ns=step_ns, host_ns=host_ns)
        return Modelled(count, on, samples / run.step_ns * 1e9, run.wait_ns / run.step_ns)

    missed = None if cold is None or not cold.batches else cold.missed_bytes // cold.batches
    pin_ns = cached.pin_ns // cached.pinned if cached.pinned else None
    notes = []
    if not cached.read_bytes:
        notes.append("No file was read through Python's open while loading: storage that C or C++ reads is not seen.")
    elif cached.real_read_ns > 0.05 * cached.wall_ns:
        share = cached.real_read_ns / cached.wall_ns
        notes.append(f"Reading from this machine's own storage took {share:.0%} of fetching: the data was not all cached here.")
    return Stalls(
        gpu=paces[0],
        prepared=paces[1],
        fetched=late,
        batch_samples=samples,
        workers=workers,
        batch_cpu_ns=cost.cpu_ns,
        batch_bytes=cached.read_bytes // batches,
        batch_missed_bytes=missed,
        batch_pin_ns=pin_ns,
        data_set_bytes=cached.data_set_samples * cached.read_bytes // cached.samples if cached.data_set_samples else None,
        bottleneck=_bottleneck(paces[0], paces[1], late, pin_ns),
        check=modelled(workers, cores, host_ns) if workers else None,
        enough=next(
            (found for count in range(1, MOST_WORKERS) if (found := modelled(count, count)).wait_share < _NOTICEABLE), None
        ),
        by_cores=[modelled(count, count) for count in core_counts],
        disk_bytes_per_s=None if missed is None else missed / min(paces[1].step_ns, step_ns) * 1e9,
        notes=notes,
    )


def _bottleneck(gpu: Pace, prepared: Pace, fetched: Pace | None, pin_ns: int | None) -> Bottleneck:
    """The stage that sets the pace: the last one that made it noticeably slower."""
    slowest = (fetched or prepared).step_ns
    if slowest <= gpu.step_ns * (1 + _NOTICEABLE):
        return Bottleneck.GPU
    if fetched is not None and fetched.step_ns > prepared.step_ns * (1 + _NOTICEABLE):
        return Bottleneck.STORAGE
    if pin_ns is not None and pin_ns >= prepared.step_ns * (1 - 2 * _NOTICEABLE):
        return Bottleneck.PINNING
    return Bottleneck.PREPARATION

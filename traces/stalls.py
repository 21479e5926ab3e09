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
    batch_wall_ns: int  # while it fetched that batch
    batch_queued_ns: int  # of `batch_wall_ns`, it waited for a core
    batch_bytes: int  # read for one batch
    batch_missed_bytes: int | None  # of it, what the cache did not hold
    batch_pin_ns: int | None
    batch_pin_cpu_ns: int | None  # of `batch_pin_ns`; less where the machine had other things to do
    data_set_bytes: int | None  # estimated: samples of the data set times bytes per sample
    bottleneck: Bottleneck
    check: Modelled | None  # the model for this machine, to be compared with `prepared`; None without workers
    check_queued: Modelled | None  # with the waits for a core that were measured, other programs' included; None: not measured
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


def _first_at_pace(steps: int, workers: int, prefetch: int) -> int:
    """The index of the first step that counts: after those that lived on what was prefetched, and so that whole rounds of the
    workers are left. Workers that began together end their batches together, W at a time. Raises TraceError."""
    unsteady = max(prefetch * workers + 1, 2, steps // 5)
    enough = unsteady + max(workers, 4)
    if steps < enough:
        raise TraceError(f"{steps} steps show no pace with {workers} workers; let the script train {enough} or more")
    return unsteady + (steps - unsteady) % max(workers, 1)


def pace(trace: Trace, batch_samples: float, workers: int, prefetch: int = 2) -> Pace:
    """Of the training steps after those that lived on what was prefetched. Raises TraceError where too few are left."""
    rows = np.flatnonzero((trace.steps.kind != StepKind.EVALUATION) & (trace.steps.kind != StepKind.INCOMPLETE))
    at_pace = rows[_first_at_pace(len(rows), workers, prefetch) :]
    waits = phase_times(trace).get("loader")
    wait_ns = 0 if waits is None else int(waits.host_ns[at_pace].mean())
    step_ns = int(trace.steps.duration_ns[at_pace].mean())
    return Pace(len(rows), step_ns, wait_ns, batch_samples / step_ns * 1e9)


def stalls_of(
    gpu: Trace, prepared: Trace, told: list[Loading], cores: int, core_counts: list[int],
    fetched: Trace | None = None, told_cold: list[Loading] | None = None,
) -> Stalls:  # fmt: skip
    """`told` and `told_cold` are what the storage was told in the runs `prepared` and `fetched`. This machine has `cores`
    cores; `core_counts` are machines to be modelled, a worker on each core.

    Raises TraceError for a script that loads nothing with a DataLoader, or trains too few steps.
    """
    if not any(one.batches for one in told):
        raise TraceError("no DataLoader fetched a batch: the script has none, or its data set is empty")
    told = _of_training(told)
    cached, cold = Loading.sum(told), None if told_cold is None else Loading.sum(_of_training(told_cold))
    workers, prefetch = cached.workers, cached.prefetch or 2
    batches, samples = cached.batches, cached.samples / max(cached.batches, 1)
    paces = [pace(trace, samples, workers, prefetch) for trace in (gpu, prepared)]
    if not batches:
        raise TraceError("no DataLoader fetched a batch that the script trains on")
    late = None if fetched is None else pace(fetched, samples, workers, prefetch)
    # What the pace was measured with: a step that waits ends soon after its batch was fetched, so that they go in one order.
    at_pace_steps = slice(_first_at_pace(paces[1].steps, workers, prefetch), paces[1].steps)
    fetches = [one for one in told if one.batches]
    counted = fetches[at_pace_steps] or fetches
    at_pace = Loading.sum(counted)
    cost = BatchCost(at_pace.cpu_ns // at_pace.batches)
    step_ns = paces[0].step_ns
    # In its first steps a script computes what it does once: kinds of ops are met, the optimizer's state is made.
    scripted = [one for one in told if one.script_batches]
    script = Loading.sum(scripted[at_pace_steps] or scripted)
    host_ns = script.script_cpu_ns // max(script.script_batches, 1)

    # Waits for a core differ from batch to batch, and include what sharing the cores among workers and script does.
    queued = [BatchCost((one.cpu_ns + min(one.queued_ns, one.wall_ns)) // one.batches) for one in counted]

    def modelled(count: int, on: int, costs: list[BatchCost], host_ns: int = 0) -> Modelled:
        run: LoaderRun = loaded(costs, workers=count, cores=on, step_ns=step_ns, host_ns=host_ns, prefetch=prefetch)
        return Modelled(count, on, samples / run.step_ns * 1e9, run.wait_ns / run.step_ns)

    queued_ns = min(at_pace.queued_ns, at_pace.wall_ns) // at_pace.batches  # short fetches: the two clocks differ
    missed = None if cold is None or not cold.batches else cold.missed_bytes // cold.batches
    pin_ns = cached.pin_ns // cached.pinned if cached.pinned else None
    notes = []
    if not cached.read_bytes:
        notes.append("No file was read through Python's open while loading: storage that C or C++ reads is not seen.")
    elif cached.stored_bytes > 0.05 * cached.read_bytes:
        share = min(cached.stored_bytes / cached.read_bytes, 1)
        notes.append(f"This machine's own storage delivered {share:.0%} of what was read: not all data was cached. Run again.")
    if cold is not None and cold.dropped and cold.kept:
        share = cold.kept / cold.dropped
        notes.append(f"{share:.0%} of the files stayed cached: their file system does not obey posix_fadvise.")
    if cold is not None and cold.dropped and cold.untold:
        share = cold.untold / cold.dropped
        notes.append(f"Whether {share:.0%} of the files left the cache cannot be told on their file system.")
    return Stalls(
        gpu=paces[0],
        prepared=paces[1],
        fetched=late,
        batch_samples=samples,
        workers=workers,
        batch_cpu_ns=cost.cpu_ns,
        batch_wall_ns=at_pace.wall_ns // at_pace.batches,
        batch_queued_ns=queued_ns,
        batch_bytes=cached.read_bytes // batches,
        batch_missed_bytes=missed,
        batch_pin_ns=pin_ns,
        batch_pin_cpu_ns=cached.pin_cpu_ns // cached.pinned if cached.pinned else None,
        data_set_bytes=cached.data_set_samples * cached.read_bytes // cached.samples if cached.data_set_samples else None,
        bottleneck=_bottleneck(paces[0], paces[1], late, pin_ns),
        check=modelled(workers, cores, [cost], host_ns) if workers else None,
        check_queued=modelled(workers, workers + 1, queued, host_ns) if workers and queued_ns else None,
        enough=next(
            (found for count in range(1, MOST_WORKERS) if (found := modelled(count, count, [cost])).wait_share < _NOTICEABLE),
            None,
        ),
        by_cores=[modelled(count, count, [cost]) for count in core_counts],
        disk_bytes_per_s=None if missed is None else missed / min(paces[1].step_ns, step_ns) * 1e9,
        notes=notes,
    )


def _of_training(told: list[Loading]) -> list[Loading]:
    """Without what was loaded for a script that computed no gradient of it: that evaluates, and its steps do not count."""
    evaluating = {one.evaluates for one in told if one.evaluates}
    return [one for one in told if not one.evaluation and one.process not in evaluating]


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

"""Finds out whether training steps wait for storage, for preprocessing, or for pinning of memory.

    of = [training_pace(trace, 128) for trace in (synthetic, cached, cold)]
    stalls = Stalls(gpu=of[0], prepared=of[1], fetched=of[2], ...)
    stalls.preparation_share      # 0.74: share of a step spent waiting when the data is cached
    stalls.bottleneck             # Bottleneck.PREPARATION

The paper "Analyzing and Mitigating Data Stalls in DNN Training" (VLDB 2021) describes this method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from traces.comparison.thresholds import BUSY_MACHINE, NOTICEABLE_WAIT, OWN_HOST_SHARE, READ_FROM_DISK
from traces.figures.measure import device_time_by_origin, phase_times
from traces.model.row_order import lists_by_key
from traces.model.run import ReplayNotes
from traces.model.trace import Origin, StepKind, Trace, TraceError
from traces.stalls.loader_model import BatchCost, LoaderRun, simulate_loader
from traces.stalls.storage_server import Loading

MOST_WORKERS = 128
_ESTIMATED = (Origin.SCALED, Origin.ROOFLINE, Origin.CURVE)
_MOST_OTHERS = 1000.0


class Bottleneck(StrEnum):
    """Names what limits the training speed."""

    GPU = "gpu"
    STORAGE = "storage"
    PREPARATION = "preparation"
    PINNING = "pinning"


@dataclass(frozen=True)
class Pace:
    """Contains the speed of a training run, without the first steps. Times are means per step."""

    steps: int  # number of measured steps
    step_ns: int  # mean step time
    wait_ns: int  # time in which the script waited for a batch
    samples_per_s: float  # training speed


@dataclass(frozen=True)
class Modelled:
    """Contains the predicted speed of data loading."""

    workers: int  # number of DataLoader workers
    cores: int  # number of CPU cores
    samples_per_s: float  # training speed
    wait_share: float  # share of a step in which the script waits for a batch


@dataclass(frozen=True)
class Stalls:
    gpu: Pace  # speed with one batch that is already in memory
    estimated_share: float  # share of GPU time that was estimated (scaled, or from curves and data sheets) instead of recorded
    prepared: Pace  # speed with cached files
    fetched: Pace | None  # speed with the modelled storage; None without it, or if no file was read from it
    batch_samples: float  # samples per batch
    step_batches: int  # batches per step
    workers: int  # number of workers of all loaders that provide batches for a step
    batch_cpu_ns: int  # CPU time to load one batch
    batch_blocked_ns: int  # time to load one batch without computing or waiting for a core (Linux; 0 elsewhere)
    batch_wall_ns: int  # wall time to fetch one batch
    batch_bytes: int  # bytes read for one batch
    batch_missed_bytes: int | None  # bytes of one batch that were not in the cache
    batch_pin_ns: int | None  # time to copy one batch to pinned memory
    batch_pin_cpu_ns: int | None  # CPU time in `batch_pin_ns`; less than `batch_pin_ns` if the machine was busy
    data_set_bytes: int | None  # estimate: number of samples times bytes per sample
    bottleneck: Bottleneck  # what the script waits for
    check: Modelled | None  # the model's prediction for this machine, to compare with `prepared`; None without workers
    taken_cores: float  # cores used by other programs while `prepared` was measured; 0 if unknown
    enough: Modelled | None  # prediction for the fewest workers, each on its own core, that end the preparation stall
    by_cores: list[Modelled]  # predictions for more CPU cores
    disk_bytes_per_s: float | None  # rate of the disk, including latency, that would end the fetch stall
    notes: list[str]  # messages about the measurement

    @property
    def preparation_share(self) -> float:
        return _share(self.prepared.step_ns, self.gpu.step_ns)

    @property
    def fetch_share(self) -> float | None:
        return None if self.fetched is None else _share(self.fetched.step_ns, self.prepared.step_ns)


def _share(step_ns: int, without_ns: int) -> float:
    return max(1 - without_ns / step_ns, 0.0) if step_ns else 0.0


def _first_at_pace(steps: int, workers: int, prefetch: int) -> int:
    unsteady = max(prefetch * workers + 1, 2, steps // 5)
    enough = unsteady + max(workers, 4)
    if steps < enough:
        raise TraceError(f"{steps} steps are too few to measure {workers} workers; train at least {enough} steps")
    return unsteady + (steps - unsteady) % max(workers, 1)


def _training_steps(trace: Trace) -> npt.NDArray[np.int64]:
    return np.flatnonzero((trace.steps.kind != StepKind.EVALUATION) & (trace.steps.kind != StepKind.INCOMPLETE))


def training_pace(trace: Trace, step_samples: float, workers: int, prefetch: int = 2) -> Pace:
    """Return the training speed without the first steps, because their batches were loaded before the training began. Raises
    TraceError if there are too few steps."""
    rows = _training_steps(trace)
    at_pace = rows[_first_at_pace(len(rows), workers, prefetch) :]
    waits = phase_times(trace).get("loader")
    wait_ns = 0 if waits is None else int(waits.host_ns[at_pace].mean())
    step_ns = int(trace.steps.duration_ns[at_pace].mean())
    return Pace(len(rows), step_ns, wait_ns, step_samples / step_ns * 1e9)


def stalls_of(
    gpu: Trace, prepared: Trace, loadings: list[Loading], cores: int, core_counts: list[int],
    fetched: Trace | None = None, cold_loadings: list[Loading] | None = None,
) -> Stalls:  # fmt: skip
    """Compute how long a script waits for data, from three runs: with one batch in memory, with cached files, and with uncached
    files. `loadings` contains the loading cost of each batch when files are cached, and `cold_loadings` the cost when files are
    not cached. The machine has `cores` CPU cores. Raises TraceError if the script uses no DataLoader."""
    if not any(one.batches for one in loadings):
        raise TraceError("no DataLoader fetched a batch: the script has none, or its data set is empty")
    loadings = _of_training(loadings)
    cached, cold = Loading.sum(loadings), None if cold_loadings is None else Loading.sum(_of_training(cold_loadings))
    workers, prefetch = _workers(loadings) or cached.workers, cached.prefetch or 2
    if cold is not None and not cold.read_bytes:
        fetched = cold = None
    batches, samples = cached.batches, cached.samples / max(cached.batches, 1)
    step_batches = _step_batches(cached, prepared)
    paces = [training_pace(trace, samples * step_batches, workers, prefetch) for trace in (gpu, prepared)]
    if not batches:
        raise TraceError("no DataLoader fetched a batch for a training step")
    late = None if fetched is None else training_pace(fetched, samples * step_batches, workers, prefetch)
    # A slow batch of a DataLoader delays all later batches, so the simulation uses the measured time of each batch, not the
    # mean.
    first, last = (step * step_batches for step in (_first_at_pace(paces[1].steps, workers, prefetch), paces[1].steps))
    fetches = _in_rounds([one for one in loadings if one.batches], workers)
    at_pace = Loading.sum(fetches[first:last] or fetches)
    cost = _cost(at_pace)
    step_ns = paces[0].step_ns // step_batches
    costs = [_cost(one) for one in fetches]
    scripted = [one for one in loadings if one.script_batches]
    hosts_ns = [one.script_cpu_ns // one.script_batches for one in scripted] or [0]
    hosts_ns += hosts_ns[-1:] * (last - len(hosts_ns))
    taken = _taken(Loading.sum(scripted[first:last]), cost.cpu_ns)

    def modelled(run: LoaderRun, workers: int, cores: int) -> Modelled:
        return Modelled(workers, cores, samples / run.step_ns * 1e9, run.wait_ns / run.step_ns)

    def elsewhere(count: int) -> Modelled:
        return modelled(simulate_loader(cost, workers=count, cores=count, step_ns=step_ns, prefetch=prefetch), count, count)

    def here(others: float) -> LoaderRun:
        return simulate_loader(
            costs, workers=workers, cores=cores, step_ns=step_ns, host_ns=hosts_ns, prefetch=prefetch,
            steps=range(first, last), others=others,
        )  # fmt: skip

    missed = None if cold is None or not cold.batches else cold.missed_bytes // cold.batches
    pin_ns = cached.pin_ns // cached.pinned if cached.pinned else None
    return Stalls(
        gpu=paces[0],
        estimated_share=_estimated_share(gpu),
        prepared=paces[1],
        fetched=late,
        batch_samples=samples,
        step_batches=step_batches,
        workers=workers,
        batch_cpu_ns=cost.cpu_ns,
        batch_blocked_ns=cost.blocked_ns,
        batch_wall_ns=at_pace.wall_ns // at_pace.batches,
        batch_bytes=cached.read_bytes // batches,
        batch_missed_bytes=missed,
        batch_pin_ns=pin_ns,
        batch_pin_cpu_ns=cached.pin_cpu_ns // cached.pinned if cached.pinned else None,
        data_set_bytes=cached.data_set_samples * cached.read_bytes // cached.samples if cached.data_set_samples else None,
        bottleneck=_bottleneck(paces[0], paces[1], late, pin_ns and pin_ns * step_batches),
        check=modelled(_beside_others(here, taken), workers, cores) if workers else None,
        taken_cores=taken,
        enough=next(
            (found for count in range(1, MOST_WORKERS) if (found := elsewhere(count)).wait_share < NOTICEABLE_WAIT), None
        ),
        by_cores=[elsewhere(count) for count in core_counts],
        disk_bytes_per_s=None if missed is None else missed * step_batches / min(paces[1].step_ns, paces[0].step_ns) * 1e9,
        notes=_notes(gpu, paces, late, cached, cold),
    )


def _notes(gpu: Trace, paces: list[Pace], late: Pace | None, cached: Loading, cold: Loading | None) -> list[str]:
    """Return warnings about the measurement. Examples: the machine was busy; some reads were not counted."""
    notes, (ready, loading) = [], paces
    replay = gpu.run_of(gpu.ranks[0]).replay or ReplayNotes()
    share = min((replay.host.lag_ns_per_step or 0) / ready.step_ns, 1)
    if share >= OWN_HOST_SHARE:
        notes.append(f"{share:.0%} of a step at GPU speed is overhead of this machine: more workers may be needed. Run again.")
    if ready.step_ns > loading.step_ns * (1 + BUSY_MACHINE):
        notes.append("Steps with a ready batch took longer than steps with loading: this machine was busy. Run again.")
    if late is not None and loading.step_ns > late.step_ns * (1 + BUSY_MACHINE):
        notes.append("Loading cached data took longer than loading from the modelled disk: this machine was busy. Run again.")
    if not cached.read_bytes:
        notes.append("No file was read through Python's open while loading: reads by C or C++ code are not counted.")
    elif cached.stored_bytes > READ_FROM_DISK * cached.read_bytes:
        share = min(cached.stored_bytes / cached.read_bytes, 1)
        notes.append(f"This machine's disk delivered {share:.0%} of the data, so not all data was cached. Run again.")
    if cold is not None and cold.dropped and cold.kept:
        share = cold.kept / cold.dropped
        notes.append(f"{share:.0%} of the files stayed cached: their file system ignores posix_fadvise.")
    if cold is not None and cold.dropped and cold.undetermined:
        share = cold.undetermined / cold.dropped
        notes.append(f"For {share:.0%} of the files, the file system does not report whether they are still cached.")
    return notes


def _cost(loading: Loading) -> BatchCost:
    return BatchCost(loading.cpu_ns // loading.batches, blocked_ns=loading.blocked_ns // loading.batches)


def _step_batches(cached: Loading, prepared: Trace) -> int:
    got = cached.script_batches + 1 if cached.script_batches else cached.batches
    return max(round(got / max(len(_training_steps(prepared)), 1)), 1)


def _workers(loadings: list[Loading]) -> int:
    by_loader: dict[int, Loading] = {}
    for one in loadings:
        if one.script_batches:
            by_loader.setdefault(one.loader, Loading()).add(one)
    most = max((one.script_batches for one in by_loader.values()), default=0)
    return sum(one.workers for one in by_loader.values() if 2 * one.script_batches > most)


def _estimated_share(trace: Trace) -> float:
    times = device_time_by_origin(trace)
    return sum(times.get(origin, 0) for origin in _ESTIMATED) / max(sum(times.values()), 1)


def _taken(script: Loading, batch_cpu_ns: int) -> float:
    own_ns = script.script_cpu_ns + script.script_batches * batch_cpu_ns
    return max(script.machine_cpu_ns - own_ns, 0) / max(script.script_wall_ns, 1)


def _beside_others(run: Callable[[float], LoaderRun], taken: float) -> LoaderRun:
    few, many = 0.0, 0.01
    while many < _MOST_OTHERS and run(many).others_cores < taken:
        few, many = many, 2 * many
    for _ in range(8):
        middle = (few + many) / 2
        few, many = (few, middle) if run(middle).others_cores >= taken else (middle, many)
    return run(few)


def _in_rounds(fetches: list[Loading], workers: int) -> list[Loading]:
    """Sort batches as the DataLoader returns them: one from the first worker, one from the second worker, and so on."""
    own = list(lists_by_key((one.process, one) for one in fetches).values())
    epochs = [own[begin : begin + workers] for begin in range(0, len(own) - workers + 1, max(workers, 1))]
    return [one for epoch in epochs for in_turn in zip(*epoch, strict=False) for one in in_turn] or fetches


def _of_training(loadings: list[Loading]) -> list[Loading]:
    evaluating = {one.evaluates for one in loadings if one.evaluates}
    return [one for one in loadings if not one.evaluation and one.process not in evaluating]


def _bottleneck(gpu: Pace, prepared: Pace, fetched: Pace | None, pin_ns: int | None) -> Bottleneck:
    slowest_ns = max(prepared.step_ns, 0 if fetched is None else fetched.step_ns)
    if slowest_ns <= gpu.step_ns * (1 + NOTICEABLE_WAIT):
        return Bottleneck.GPU
    if fetched is not None and fetched.step_ns > prepared.step_ns * (1 + NOTICEABLE_WAIT):
        return Bottleneck.STORAGE
    if pin_ns is not None and pin_ns >= prepared.step_ns * (1 - 2 * NOTICEABLE_WAIT):
        return Bottleneck.PINNING
    return Bottleneck.PREPARATION

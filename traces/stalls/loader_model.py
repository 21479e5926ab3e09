"""Predicts how fast a DataLoader with W workers on C CPU cores supplies batches.

    cost = BatchCost(cpu_ns=900_000_000, read_bytes=14_000_000, seeks=128)
    run = simulate_loader(cost, workers=24, cores=24, step_ns=80_000_000)
    run.step_ns, run.wait_ns       # 80_000_000, 0: means over the batches after the first ones

With W workers, worker 0 loads batches 0, W, 2 W and so on, as in torch.utils.data. The simulated disk reads one file at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from traces.stalls.storage_model import Disk

_PARTS = 8
_SCRIPT = -1  # used instead of a worker's number for the script's process


@dataclass(frozen=True)
class BatchCost:
    cpu_ns: int  # CPU time to decode, transform, collate and hand over the batch
    read_bytes: int = 0  # bytes read from the disk because no cache has them
    seeks: int = 0
    blocked_ns: int = 0  # time in which the worker needs no CPU core, such as waits for the network


@dataclass(frozen=True)
class LoaderRun:
    step_ns: int
    wait_ns: int
    others_cores: float = 0


def simulate_loader(
    cost: BatchCost | Sequence[BatchCost],
    *,
    workers: int,
    cores: int,
    step_ns: int,
    host_ns: int | Sequence[int] = 0,
    disk: Disk | None = None,
    prefetch: int = 2,
    steps: range | None = None,
    others: float = 0,
) -> LoaderRun:
    """Simulate a training run with a DataLoader, and return the mean step time and waiting time. A training step takes
    `step_ns` if its batch is ready. If `cost` is a sequence, batch b costs `cost[b % len(cost)]`. Other programs keep `others`
    CPU cores busy. Raises ValueError if there are no workers."""
    if workers < 1 or cores < 1:
        raise ValueError(f"{workers} workers on {cores} cores cannot be simulated; give at least one of each")
    if steps is None:  # begin late, because the first steps use prefetched batches
        steps = range(12 * workers, 36 * workers)
    costs = [cost] if isinstance(cost, BatchCost) else list(cost)
    hosts_ns = [host_ns] if isinstance(host_ns, int) else list(host_ns)
    run = _Simulation(costs, workers, cores, step_ns, hosts_ns, disk, prefetch, others)
    while len(run.ended_ns) < steps.start:
        run.go_on()
    begin_ns, begin_others_ns = run.now_ns, run.others_ns
    while len(run.ended_ns) < steps.stop:
        run.go_on()
    span_ns = run.now_ns - begin_ns
    waited_ns = sum(run.waited_ns[steps.start : steps.stop])
    return LoaderRun(round(span_ns / len(steps)), waited_ns // len(steps), (run.others_ns - begin_others_ns) / span_ns)


@dataclass
class _Simulation:
    costs: list[BatchCost]
    workers: int
    cores: int
    step_ns: int
    hosts_ns: list[int]
    disk: Disk | None
    prefetch: int
    others: float

    def __post_init__(self) -> None:
        self.now_ns = self.others_ns = 0.0  # `others_ns` is the CPU time of other programs

        # Running processes share the CPU cores equally.
        self._work_ns = 0.0
        self._computing: list[tuple[float, int]] = []  # (work clock at the end of the part, worker)
        self._timed: list[tuple[float, int]] = []  # (time, worker) for the end of a read or of the GPU's part of a step
        self._parts_left = [0] * self.workers
        self._at = list(range(self.workers))
        self._busy = [False] * self.workers
        self._ready: set[int] = set()
        self._open_ends = 0  # number of unfinished parts (host work, GPU work) of the script's current step
        self._asked_ns = 0.0
        self.got = 0
        self.ended_ns: list[int] = []
        self.waited_ns: list[int] = []
        for worker in range(self.workers):
            self._begin(worker)

    def go_on(self) -> None:
        rate = min(1.0, self.cores / max(len(self._computing) + self.others, 1))
        done_ns = self.now_ns + (self._computing[0][0] - self._work_ns) / rate if self._computing else float("inf")
        timed_ns = self._timed[0][0] if self._timed else float("inf")
        at_ns = min(done_ns, timed_ns)
        self._work_ns += (at_ns - self.now_ns) * rate
        self.others_ns += (at_ns - self.now_ns) * rate * self.others
        self.now_ns = at_ns
        is_timed = timed_ns <= done_ns
        _, worker = heapq.heappop(self._timed if is_timed else self._computing)
        if worker == _SCRIPT:
            self._end_of_step()
        elif is_timed:
            self._compute(worker, self._cost(worker).cpu_ns / _PARTS)
        else:
            self._part_done(worker)

    def _begin(self, worker: int) -> None:
        if not self._busy[worker] and self._at[worker] < self.got + self.prefetch * self.workers:
            self._busy[worker] = True
            self._parts_left[worker] = _PARTS
            self._read(worker)

    def _cost(self, worker: int) -> BatchCost:
        return self.costs[self._at[worker] % len(self.costs)]

    def _read(self, worker: int) -> None:
        cost = self._cost(worker)
        ready_ns = self.now_ns + cost.blocked_ns / _PARTS
        if self.disk is not None and (cost.read_bytes or cost.seeks):
            seeks = cost.seeks // _PARTS + (self._parts_left[worker] <= cost.seeks % _PARTS)
            ready_ns = float(self.disk.read(round(ready_ns), cost.read_bytes // _PARTS, seeks))
        heapq.heappush(self._timed, (ready_ns, worker))

    def _compute(self, worker: int, work_ns: float) -> None:
        heapq.heappush(self._computing, (self._work_ns + work_ns, worker))

    def _part_done(self, worker: int) -> None:
        self._parts_left[worker] -= 1
        if self._parts_left[worker]:
            return self._read(worker)
        self._ready.add(self._at[worker])
        self._at[worker] += self.workers
        self._busy[worker] = False
        self._begin(worker)
        self._get()

    def _get(self) -> None:
        if self._open_ends or self.got not in self._ready:
            return
        self._ready.remove(self.got)
        self.waited_ns.append(round(self.now_ns - self._asked_ns))
        self._compute(_SCRIPT, self.hosts_ns[self.got % len(self.hosts_ns)])
        self.got += 1
        self._begin((self.got - 1) % self.workers)
        self._open_ends = 2
        heapq.heappush(self._timed, (self.now_ns + self.step_ns, _SCRIPT))

    def _end_of_step(self) -> None:
        self._open_ends -= 1
        if not self._open_ends:
            self._asked_ns = self.now_ns
            self.ended_ns.append(round(self.now_ns))
            self._get()

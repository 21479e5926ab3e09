"""Estimates how long a collective operation takes after all ranks have called the operation.

    costs = CollectiveCosts.of(trace)
    costs.next("all_reduce", 21_288, 2)     # Transfer(duration_ns=14_000, origin=Origin.EXACT, kernel=17)
    costs.next("all_reduce", 21_288, 2, costs.position("all_reduce", 21_288, 2, step=7, recorded_step=3))

The rank that arrives last does not wait, so its kernel gives the duration of the collective.

Note [Operations of a step]
    A collective takes the recorded time of the collective at the same position in the step. At that position, the network
    carried the same other traffic.

Note [Bytes on the wire]
    With n ranks and b input bytes per rank, an all-reduce moves 2b(n-1)/n bytes over each link of a ring. A reduce-scatter or
    all-to-all moves b(n-1)/n bytes, and an all-gather moves b(n-1) bytes. A broadcast, reduce, send or receive moves b bytes.
    The factors are the "bus bandwidth" factors of NVIDIA's nccl-tests (doc/PERFORMANCE.md).

Note [Bytes of a batch]
    The sends and receives of a batch use the network in opposite directions, so an unrecorded batch takes as long as one send
    of the bytes of its larger direction. A recording contains only the sum of both directions. This sum does not show how fast
    a link is.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import numpy as np

from replayer.cost_model.all_reduce_curve import AllReduceCurve, wire_share
from replayer.cost_model.constants import BASE_LATENCY_NS, GLOO_BYTES_PER_S, GLOO_LATENCY_NS, RING_BANDWIDTH_FROM_BYTES
from traces.analyses.communication import communication_kernels
from traces.figures.measure import device_ranks, step_windows
from traces.model.trace import NONE, Ending, Origin, Trace
from traces.names.cards import card_of
from traces.names.collectives import known_as

BATCH = "batch_isend_irecv"

Key = tuple[str, int, int]  # name, bytes of one rank's input, number of ranks


class Transfer(NamedTuple):
    duration_ns: int
    origin: Origin
    kernel: int  # index into `trace.strings`, or NONE


class PositionInStep(NamedTuple):
    step: int
    nth: int


class GroupOperation(NamedTuple):
    name: str
    dtype: str
    group: str
    group_size: int
    backend: str
    size_bytes: int


class Times(NamedTuple):
    call: int
    ready: int
    end: int


def wire_bytes(name: str, size_bytes: int, ranks: int) -> float:
    # see Note [Bytes on the wire]
    if ranks <= 1:
        return 0.0
    parts = dict.fromkeys(("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"), (ranks - 1) / ranks)
    whole = dict.fromkeys(("all_gather", "all_gather_into_tensor", "gather"), ranks - 1)
    factors = {"all_reduce": wire_share(ranks), "barrier": 0, **parts, **whole}
    return size_bytes * factors.get(name, 1.0)


def gloo_ns(name: str, size_bytes: int, ranks: int) -> int:
    return round(GLOO_LATENCY_NS + wire_bytes(name, size_bytes, ranks) / GLOO_BYTES_PER_S * 1e9)


def ring_steps(name: str, ranks: int) -> int:
    """Return the number of steps of NCCL's ring algorithm (src/graph/tuning.cc)."""
    if ranks <= 1:
        return 0
    if name in ("all_reduce", "barrier"):
        return 2 * (ranks - 1)
    return 1 if name in ("send", "recv") else ranks - 1


class CollectiveCosts:
    def __init__(self, device_name: str, bus_gbps: float = 0) -> None:
        self._recorded: dict[Key, list[int]] = {}
        self._in_step: dict[tuple[Key, int], list[int]] = {}
        self._called: dict[Key, tuple[int, int]] = {}
        self._at_most_ns: dict[Key, int] = {}
        self._played: dict[Key, int] = {}
        self._estimates: dict[Key, Transfer] = {}
        self._kernels: dict[str, int] = {}
        self._device_name = device_name
        self._bus_gbps = bus_gbps
        self._hop_ns = card_of(device_name).link.hop_ns
        self._recorded_latency_ns: int | None = None
        self._slower = 1.0  # recorded duration divided by the curve's duration
        self._origin: Origin | None = None

    @classmethod
    def of(cls, trace: Trace, bus_gbps: float = 0) -> CollectiveCosts:
        """Measure the durations of collectives in a recording. `bus_gbps` replaces the recorded bandwidth between GPUs."""
        costs = cls(trace.devices[0].name if trace.devices else "", bus_gbps)
        costs._name_kernels(trace)
        if bus_gbps:
            return costs
        # for each rank: the duration, True if the duration is exact (False for an upper bound), and the step number
        by_rank: dict[Key, dict[int, list[tuple[int, bool, int]]]] = {}
        table, timed = trace.collectives, _timed_on_device(trace)
        columns = (table.name, table.bytes, table.group_size, table.rank, table.duration_ns, table.ending, _steps_of(trace))
        rows = zip(*(column[timed].tolist() for column in columns), strict=True)
        for name, size_bytes, group, rank, duration_ns, ending, step in rows:
            key = (known_as(trace.strings[name]), max(size_bytes, 0), group if group > 0 else len(trace.ranks))
            by_rank.setdefault(key, {}).setdefault(rank, []).append((duration_ns, ending == Ending.SEEN, step))
        for key, ranks in by_rank.items():
            longest = max(map(len, ranks.values()))
            rounds = [[own[i] for own in ranks.values() if i < len(own)] for i in range(longest)]
            seen = [min(took) for took in rounds if any(is_seen for _, is_seen, _ in took)]
            if seen:
                costs._recorded[key] = [duration_ns for duration_ns, _, _ in seen]
                for duration_ns, _, step in seen:
                    costs._in_step.setdefault((key, step), []).append(duration_ns)
            else:
                costs._at_most_ns[key] = min(min(took)[0] for took in rounds)
        costs._fit()
        return costs

    def _fit(self) -> None:
        small = [min(ns) for (_, size, _), ns in self._recorded.items() if 0 < size < RING_BANDWIDTH_FROM_BYTES]
        if small:
            self._recorded_latency_ns = int(median(small))
        slower = [
            max(median(ns) - self._latency_ns(key[0], key[2]), 1) / self._moving_ns(*key)[0]
            for key, ns in self._recorded.items()
            if key[0] != BATCH and wire_bytes(*key) >= RING_BANDWIDTH_FROM_BYTES  # see Note [Bytes of a batch]
        ]
        if slower:
            self._slower = median(slower)
            self._origin = Origin.SCALED

    def _moving_ns(self, name: str, size_bytes: int, ranks: int) -> tuple[float, Origin]:
        # see Note [Bytes on the wire]
        group = 2 if name in ("send", "recv") else max(ranks, 2)
        curve = AllReduceCurve.of(self._device_name, group, self._bus_gbps)
        like_bytes = wire_bytes(name, size_bytes, ranks) / wire_share(group)
        return curve.duration_ns(like_bytes) - curve.duration_ns(0), curve.origin

    def _name_kernels(self, trace: Trace) -> None:
        names = np.unique(trace.device.name[communication_kernels(trace)]).tolist()
        for name in names:
            for operation in ("AllReduce", "Broadcast", "AllGather", "ReduceScatter", "Reduce", "SendRecv"):
                if operation in trace.strings[name]:
                    self._kernels.setdefault(operation, name)
                    break

    def position(self, name: str, size_bytes: int, ranks: int, step: int, recorded_step: int) -> PositionInStep:
        # see Note [Operations of a step]
        key = (name, size_bytes, ranks)
        of_step, nth = self._called.get(key, (NONE, 0))
        if of_step != step:
            nth = 0
        self._called[key] = step, nth + 1
        return PositionInStep(recorded_step, nth)

    def next(
        self, name: str, size_bytes: int, ranks: int, position: PositionInStep | None = None, one_way_bytes: int = 0
    ) -> Transfer:
        kernel = self._kernels.get(_FUNCTIONS.get(name, ""), NONE)
        key = (name, size_bytes, ranks)
        recorded = self._recorded.get(key)
        if recorded:
            played = self._played.get(key, 0)
            self._played[key] = played + 1
            of_step = self._in_step.get((key, position.step), []) if position is not None else []
            if position is not None and position.nth < len(of_step):
                return Transfer(of_step[position.nth], Origin.EXACT, kernel)
            return Transfer(recorded[played % len(recorded)], Origin.EXACT, kernel)
        if name == BATCH:  # see Note [Bytes of a batch]
            send = self.next("send", one_way_bytes, ranks)
            return send._replace(origin=max(send.origin, Origin.EQUIVALENT))
        if ranks == 1 and name in _IN_PLACE:
            return Transfer(0, Origin.EXACT, kernel)
        estimate = self._estimates.get(key)
        if estimate is None:
            moving_ns, origin = self._moving_ns(name, size_bytes, ranks)
            duration_ns = self._latency_ns(name, ranks) + int(moving_ns * self._slower)
            duration_ns = min(duration_ns, self._at_most_ns.get(key, duration_ns))
            estimate = self._estimates[key] = Transfer(duration_ns, self._origin or origin, kernel)
        return estimate

    def _latency_ns(self, name: str, ranks: int) -> int:
        if self._recorded_latency_ns is not None:
            return self._recorded_latency_ns
        return BASE_LATENCY_NS + ring_steps(name, ranks) * self._hop_ns


def kernel_label(name: str) -> str:
    return f"ncclDevKernel_{_FUNCTIONS.get(name, 'SendRecv')}"


# In a group of one rank, NCCL launches no kernel for these collectives (measured on an H200).
_IN_PLACE = frozenset({"all_reduce", "barrier", "broadcast", "reduce"})

_FUNCTIONS = {
    "all_reduce": "AllReduce",
    "barrier": "AllReduce",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_gather": "AllGather",
    "all_gather_into_tensor": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "reduce_scatter_tensor": "ReduceScatter",
    **dict.fromkeys(("all_to_all", "all_to_all_single", "gather", "scatter", "send", "recv", BATCH), "SendRecv"),
}


def _steps_of(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    table, steps = trace.collectives, trace.steps
    called_ns = np.where(table.called_ns != NONE, table.called_ns, table.start_ns)
    row = step_windows(trace).holding(called_ns, table.rank)
    number = np.full(len(steps) + 1, NONE)
    for rank in np.unique(steps.rank).tolist():
        own = np.flatnonzero(steps.rank == rank)
        number[own[np.argsort(steps.start_ns[own], kind="stable")]] = np.arange(len(own))
    return np.asarray(number[row])


def _timed_on_device(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    table, kernels = trace.collectives, communication_kernels(trace)
    keep = (table.device != NONE) & (table.duration_ns > 0)
    rank_of = device_ranks(trace)[kernels]
    for rank in np.unique(rank_of).tolist():
        first_ns = int(trace.device.start_ns[kernels][rank_of == rank].min())
        last_ns = int(trace.device.end_ns[kernels][rank_of == rank].max())
        in_time = (table.start_ns + table.duration_ns >= first_ns) & (table.start_ns <= last_ns)
        keep |= (table.rank == rank) & in_time & (table.duration_ns > 0)
    return np.flatnonzero(keep & (table.ending != Ending.UNSEEN))

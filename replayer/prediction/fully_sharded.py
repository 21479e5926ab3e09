"""Predicts step times with fully sharded data parallelism (FSDP) from a recording of one GPU.

    schedule = ShardedStep.of(units, forward, backward_ns=..., gather=..., scatter=...)
    schedule.exposed_ns         # communication time that does not overlap with computation

The prediction assumes that the training uses torch.distributed.fsdp (Zhao et al., "PyTorch FSDP", 2023, section 3):

* Communication runs on a separate stream and overlaps with computation.
* The backward pass gathers parameters early, as with `BackwardPrefetch.BACKWARD_PRE`.
* Communication operations run one after another.
* Parameters outside of repeated layers are gathered first and stay gathered until the backward pass.
* On each rank, the optimizer updates only this rank's part of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from replayer.cost_model.collective_costs import CollectiveCosts, wire_bytes
from replayer.prediction.conditions import Conditions
from replayer.prediction.layers import layers_of
from replayer.prediction.optimizer_states import states_of
from replayer.prediction.parallel import Parallel
from traces.figures.measure import launch_phase_names, launch_steps, launch_time_ns
from traces.model.trace import Column, Trace, TraceError

ROOT = ""


@dataclass(frozen=True)
class ShardedStep:
    gather_ns: float
    scatter_ns: float
    exposed_ns: float  # communication time that does not overlap with computation

    @classmethod
    def of(
        cls,
        units: Sequence[tuple[str, float]],
        backward_ns: float,
        gather: Callable[[str], float],
        scatter: Callable[[str], float],
    ) -> ShardedStep:
        """Simulate one training step.

        Args:
            units: (name, forward duration) of each FSDP unit, such as a transformer layer
            gather, scatter: return the duration of an FSDP unit's all-gather or reduce-scatter
        """
        forward_ns = sum(ns for _, ns in units)
        wanted = [(unit, ns) for unit, ns in units if unit != ROOT]
        root_ns = gather(ROOT)
        gathered_ns = root_ns + sum(gather(unit) for unit, _ in wanted)
        end_ns = _passed(units, gather, None, root_ns)
        exposed_ns, scattered_ns = end_ns - forward_ns, 0.0
        if backward_ns and forward_ns:
            share = backward_ns / forward_ns
            back = [(unit, ns * share) for unit, ns in reversed(units)]
            gathered_ns += sum(gather(unit) for unit, _ in wanted)
            scattered_ns = scatter(ROOT) + sum(scatter(unit) for unit, _ in wanted)
            exposed_ns += _passed(back, gather, scatter, 0.0) - backward_ns
        return cls(gathered_ns, scattered_ns, exposed_ns)


def _passed(
    parts: Sequence[tuple[str, float]], gather: Callable[[str], float], scatter: Callable[[str], float] | None, begun_ns: float
) -> float:
    wanted = [unit for unit, _ in parts if unit != ROOT]
    done_ns = [0.0, 0.0]
    communicates_ns = computes_ns = begun_ns
    gathered_ns: list[float] = []

    def prefetch() -> None:
        nonlocal communicates_ns
        number = len(gathered_ns)
        if number < len(wanted):  # FSDP gathers at most two units at a time
            communicates_ns = max(communicates_ns, done_ns[number]) + gather(wanted[number])
            gathered_ns.append(communicates_ns)

    prefetch()
    for unit, ns in parts:
        if unit == ROOT:
            computes_ns += ns
            continue
        number = len(done_ns) - 2
        computes_ns = max(computes_ns, gathered_ns[number]) + ns
        prefetch()
        done_ns.append(computes_ns)
        if scatter is not None:
            communicates_ns = max(communicates_ns, computes_ns) + scatter(unit)
    if scatter is not None:
        communicates_ns = max(communicates_ns, computes_ns) + scatter(ROOT)
    return max(computes_ns, communicates_ns)


def sharded_durations_ns(durations_ns: Column, recorded: Trace, ranks: int, floor_ns: int) -> Column:
    rows = recorded.device.is_work & np.isin(launch_phase_names(recorded), ("optimizer", "zero_grad"))
    shard_ns = np.maximum(durations_ns // ranks, np.minimum(durations_ns, floor_ns))
    return np.where(rows, shard_ns, durations_ns)


def fully_sharded(trace: Trace, conditions: Conditions, one_ns: float, parameters: int, peak_bytes: int | None) -> Parallel:
    ranks = conditions.nproc
    layers = layers_of(trace)
    layer_bytes = sum(layer.parameter_bytes for layer in layers)
    parameters = parameters or layer_bytes
    if not layer_bytes:
        raise TraceError("FSDP cannot be predicted, because the recording has no shapes of layers with parameters")
    sizes: dict[str, int] = {ROOT: 0}
    for layer in layers:
        sizes[layer.block] = sizes.get(layer.block, 0) + layer.parameter_bytes
    sizes = {unit: round(size * parameters / layer_bytes) for unit, size in sizes.items()}
    units, backward_ns = _computing(trace, [(layer.row, layer.block) for layer in layers])
    costs = CollectiveCosts(trace.devices[0].name, conditions.link_gbps)

    def takes(operation: str, unit: str) -> float:
        size = _input_bytes(operation, sizes[unit], ranks)
        return float(costs.next(operation, size, ranks).duration_ns) if size else 0.0

    schedule = ShardedStep.of(units, backward_ns, lambda unit: takes(GATHER, unit), lambda unit: takes(SCATTER, unit))
    parts = {"all-gather": schedule.gather_ns}
    if backward_ns:
        parts["reduce-scatter"] = schedule.scatter_ns
    parts["not hidden by computation"] = schedule.exposed_ns
    calls = [ROOT, *(unit for unit, _ in units if unit != ROOT)]
    memory = rank_memory(sizes, ranks, states_of(trace) if backward_ns else None)
    whole = parameters * (2 + states_of(trace)) if backward_ns else parameters
    blocks = len(sizes) - 1
    return Parallel(
        "FullyShardedDataParallel", ranks, one_ns + schedule.exposed_ns, parts, parameters,
        moved_bytes=moved_bytes(sizes, calls, ranks, with_backward=bool(backward_ns)),
        rank_bytes=memory,
        peak_bytes=max(peak_bytes - whole, 0) + sum(memory.values()) if peak_bytes else None,
        assumed=f"sharded units besides the root: {blocks}; each unit is gathered while the unit before it computes;"
        " gradient times are proportional to forward times; each rank trains on a full batch and runs 1/N of the optimizer",
    )  # fmt: skip


GATHER, SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"


def _input_bytes(operation: str, size_bytes: int, ranks: int) -> int:
    return -(-size_bytes // ranks) * (1 if operation == GATHER else ranks)


def moved_bytes(sizes: dict[str, int], calls: Sequence[str], ranks: int, *, with_backward: bool) -> int:
    total = 0.0
    for unit in calls:
        gather = wire_bytes(GATHER, _input_bytes(GATHER, sizes[unit], ranks), ranks)
        scatter = wire_bytes(SCATTER, _input_bytes(SCATTER, sizes[unit], ranks), ranks)
        total += gather * (1 + (with_backward and unit != ROOT)) + scatter * with_backward
    return round(total)


def rank_memory(sizes: dict[str, int], ranks: int, states: int | None) -> dict[str, int]:
    shard = sum(_input_bytes(GATHER, size, ranks) for size in sizes.values())
    memory = {"parameters": shard}
    if states is not None:
        memory |= {"gradients": shard, "optimizer state": shard * states}
    if ranks > 1:
        largest = sorted((size for unit, size in sizes.items() if unit != ROOT), reverse=True)[:2]
        memory["gathered"] = sizes.get(ROOT, 0) + sum(largest) + (max(largest, default=0) if states is not None else 0)
    return memory


def _computing(trace: Trace, layers: Sequence[tuple[int, str]]) -> tuple[list[tuple[str, float]], float]:
    device, launched_ns = trace.device, launch_time_ns(trace)
    first_ns = int(trace.host.start_ns[layers[0][0]])
    of, steps = launch_phase_names(trace), launch_steps(trace)
    work = device.is_work
    if len(trace.steps):
        within = (trace.steps.start_ns <= first_ns) & (first_ns < trace.steps.end_ns)
        work = work & (steps == int(np.flatnonzero(within)[0])) if within.any() else work
    forward = work & ((of == "forward") | (len(trace.phases) == 0))
    backward = work & (of == "backward")
    backward_ns = 0.0
    if backward.any():
        backward_ns = float(device.end_ns[backward].max() - device.start_ns[backward].min())
    order = np.flatnonzero(forward)
    order = order[np.argsort(launched_ns[order], kind="stable")]
    starts = np.maximum.accumulate(device.start_ns[order])
    end_ns = int(device.end_ns[order].max(initial=0))
    parts: list[tuple[str, int]] = []
    for unit, own in groupby(layers, key=lambda layer: layer[1]):
        at = int(np.searchsorted(launched_ns[order], trace.host.start_ns[next(own)[0]]))
        if at < len(order):
            parts.append((unit, int(starts[at])))
    if len(order) and (not parts or parts[0][1] > starts[0]):
        parts.insert(0, (ROOT, int(starts[0])))
    bounds = [*(start for _, start in parts[1:]), end_ns]
    return [(unit, float(end - start)) for (unit, start), end in zip(parts, bounds, strict=True)], backward_ns

"""Uses a recording of one GPU to predict the step times of training with nn.DataParallel or DistributedDataParallel.

* nn.DataParallel copies parameters and gradients from GPU to GPU in a ring. The time hardly depends on the number of GPUs.
* nn.DataParallel replicates the model in Python. On the CPU, this takes longer than the model's forward pass.
* nn.DataParallel runs the replicas in threads. The threads overlap, because PyTorch's ops release Python's global lock.
* DistributedDataParallel sums gradients in buckets of 25 MiB during the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from replayer.cost_model.collective_costs import CollectiveCosts, wire_bytes
from replayer.cost_model.constants import BUCKET_BYTES, FIRST_BUCKET_BYTES, REPLICA_PER_FORWARD
from replayer.cost_model.copy_costs import CopyCosts
from replayer.cost_model.device_speed import data_sheet_speed
from replayer.prediction.conditions import Conditions
from traces.figures.measure import phase_busy_ns, steady_steps
from traces.model.trace import Trace, TraceError


@dataclass(frozen=True)
class Parallel:
    kind: str  # kind of parallelism
    gpus: int  # number of GPUs
    step_ns: float  # predicted step time
    parts_ns: dict[str, float]  # parts of the step time
    parameter_bytes: int  # size of all parameters
    moved_bytes: int = 0  # bytes that a rank sends per step
    rank_bytes: dict[str, int] = field(default_factory=dict)  # memory of one rank, by kind of data
    peak_bytes: int | None = None  # memory peak of one rank
    assumed: str = ""  # assumption, as one sentence without a full stop


def data_parallel(trace: Trace, conditions: Conditions, one_ns: float, forward_ns: float, parameters: int) -> Parallel:
    _require_parameters(parameters)
    device = trace.devices[0].name
    transfers = CopyCosts.of(trace, data_sheet_speed(device), conditions.link_gbps)
    copy_ns = float(transfers.copy("p2p", False, parameters).duration_ns)
    parts = {
        "parameters copied": copy_ns,
        "gradients copied": copy_ns if _backward_ns(trace) else 0.0,
        "host time of replicas": conditions.gpus * REPLICA_PER_FORWARD * forward_ns,
    }
    return Parallel("nn.DataParallel", conditions.gpus, one_ns + sum(parts.values()), parts, parameters)


def distributed_data_parallel(trace: Trace, conditions: Conditions, one_ns: float, parameters: int) -> Parallel:
    _require_parameters(parameters)
    costs = CollectiveCosts(trace.devices[0].name, conditions.link_gbps)
    backward_ns = _backward_ns(trace)
    if not backward_ns:
        raise TraceError("the recording has no backward pass, so DistributedDataParallel has no gradients to sum")
    sizes = [min(FIRST_BUCKET_BYTES, parameters)]
    while sum(sizes) < parameters:
        sizes.append(min(BUCKET_BYTES, parameters - sum(sizes)))
    took = [costs.next("all_reduce", size, conditions.nproc).duration_ns for size in sizes]
    left_ns = left_after_backward_ns(backward_ns, list(zip(sizes, took, strict=True)))
    parts = {"all-reduce": float(sum(took)), "after the backward pass": left_ns}
    moved = sum(wire_bytes("all_reduce", size, conditions.nproc) for size in sizes)
    return Parallel(
        "DistributedDataParallel", conditions.nproc, one_ns + left_ns, parts, parameters, round(moved),
        assumed="gradients are summed in buckets of 25 MiB during the backward pass; each rank trains on a full batch",
    )  # fmt: skip


def left_after_backward_ns(backward_ns: float, buckets: Sequence[tuple[int, int]]) -> float:
    all_bytes = sum(size for size, _ in buckets) or 1
    at_ns, done_bytes = 0.0, 0
    for size, took_ns in buckets:
        done_bytes += size
        at_ns = max(at_ns, backward_ns * done_bytes / all_bytes) + took_ns
    return max(at_ns - backward_ns, 0.0)


def _require_parameters(parameters: int) -> None:
    if not parameters:
        raise TraceError("the parameter size is not in the recording, so communication between GPUs cannot be predicted")


def _backward_ns(trace: Trace) -> float:
    busy, rows = phase_busy_ns(trace), steady_steps(trace)
    return float(np.median(busy["backward"][rows])) if "backward" in busy and len(rows) else 0.0

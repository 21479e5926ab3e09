"""Headers of trace files from before machines had a type: facts that were keys of the provenance, properties by two names.

    machines, provenance = machines_of(header["provenance"], ranks=[0, 1])
    outside_bytes_of(header["provenance"], rank=0)      # {0: 512 MiB}: by the device's index

Every such translation is here, and every reader of a file goes through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from traces.machine import Machine, Settings, hip_version, runtime_version

# Keys of the provenance that became fields; "ranks" holds, by rank, what differs from the first.
_KEYS = (
    "torch", "python", "system", "processors", "tf32", "cudnn_benchmark", "deterministic", "cuda", "hip", "cudnn", "driver",
    "oom_text", "outside_bytes", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "hip_driver_version",
)  # fmt: skip


def machines_of(provenance: Mapping[str, Any], ranks: Iterable[int]) -> tuple[dict[int, Machine], dict[str, Any]]:
    """The machine of each rank, and the provenance without what is known of it."""
    machines = {rank: machine for rank in ranks if (machine := _machine(_of_rank(provenance, rank))) != Machine()}
    rest = _without(provenance)
    if isinstance(own := provenance.get("ranks"), dict):
        rest["ranks"] = {rank: _without(facts) if isinstance(facts, dict) else facts for rank, facts in own.items()}
    return machines, rest


def outside_bytes_of(provenance: Mapping[str, Any], rank: int) -> dict[int, int]:
    """By the index of a rank's device, what was taken of its memory beside PyTorch."""
    told = _of_rank(provenance, rank).get("outside_bytes")
    if not isinstance(told, Mapping):
        return {}
    return {int(index): size for index, size in told.items() if str(index).isdigit() and type(size) is int and size > 0}


def _of_rank(provenance: Mapping[str, Any], rank: int) -> dict[str, Any]:
    ranks = provenance.get("ranks")
    own = ranks.get(str(rank)) if isinstance(ranks, Mapping) else None
    return {**provenance, **(own if isinstance(own, Mapping) else {})}


def _without(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key not in _KEYS}


def _machine(facts: Mapping[str, Any]) -> Machine:
    tf32 = facts.get("tf32")
    environment = facts.get("environment")
    environment = environment if isinstance(environment, Mapping) else {}
    conf = environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF")

    def told(key: str, kind: type[Any], of: Mapping[str, Any] = facts) -> Any:
        return value if type(value := of.get(key)) is kind and value != "" else None

    supported = runtime_version(facts.get("cuda_driver_version"))
    return Machine(
        torch=told("torch", str),
        cuda=told("cuda", str) or runtime_version(facts.get("cuda_runtime_version")),
        hip=told("hip", str) or hip_version(facts.get("hip_runtime_version")),
        cudnn=told("cudnn", int),
        driver=told("driver", str) or (supported and f"CUDA {supported}"),
        python=told("python", str),
        system=told("system", str),
        processors=told("processors", int),
        oom_text=told("oom_text", str),
        settings=Settings(
            tf32_matmul=told("matmul", bool, tf32) if isinstance(tf32, Mapping) else None,
            tf32_cudnn=told("cudnn", bool, tf32) if isinstance(tf32, Mapping) else None,
            cudnn_benchmark=told("cudnn_benchmark", bool),
            deterministic=told("deterministic", bool),
            allocator=conf if isinstance(conf, str) else None,
        ),
    )

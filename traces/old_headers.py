"""Headers of trace files from before machines and runs had types: facts that were keys of the provenance.

    machines_of(header["provenance"], ranks=[0, 1])     # {0: Machine(torch="2.13.0+cu126", ...), ...}
    runs_of(header["provenance"], ranks=[0, 1])         # {0: Run(source="trace record", clock="unix", ...), ...}
    outside_bytes_of(header["provenance"], rank=0)      # {0: 512 MiB}: by the device's index
    rest_of(header["provenance"], with_machines=False)  # what no code reads

Every such translation is here, and every reader of a file goes through it. What is of another type than was ever written there
is left out: such a file could always be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from traces.configuration import ReplayConfig
from traces.machine import Machine, TorchSettings, hip_version, runtime_version
from traces.run import (
    CleanSteps,
    HostFigures,
    LoaderSettings,
    ProfilerUse,
    RecorderCost,
    ReplayNotes,
    Run,
    Script,
    distributed_of,
)
from traces.typed_json import fitting

# Keys of the provenance that became fields of Machine, Device and Run; "ranks" holds, by rank, what differs from the first.
_OF_MACHINE = (
    "torch", "python", "system", "processors", "tf32", "cudnn_benchmark", "deterministic", "cuda", "hip", "cudnn", "driver",
    "oom_text", "outside_bytes", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "hip_driver_version",
)  # fmt: skip
_OF_RUN = (
    "source", "clock", "rank", "script", "argv", "loaders", "recorder", "profiler", "clean", "host_scale", "distributed",
    "replay",
)  # fmt: skip


def machines_of(provenance: Mapping[str, Any], ranks: Iterable[int]) -> dict[int, Machine]:
    """The machine of each rank of which something is told."""
    machines = {rank: machine_in(_of_rank(provenance, rank)) for rank in ranks}
    return {rank: machine for rank, machine in machines.items() if machine != Machine()}


def runs_of(provenance: Mapping[str, Any], ranks: Iterable[int]) -> dict[int, Run]:
    """The run of each rank of which something is told."""
    runs = {rank: _run(_of_rank(provenance, rank)) for rank in ranks}
    return {rank: run for rank, run in runs.items() if run != Run()}


def rest_of(provenance: Mapping[str, Any], *, with_machines: bool) -> dict[str, Any]:
    """The provenance without what became a field; `with_machines`: the file has machines, and told nothing of them here."""
    moved = frozenset(_OF_RUN if with_machines else _OF_MACHINE + _OF_RUN)

    def without(facts: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in facts.items() if key not in moved}

    rest = without(provenance)
    if isinstance(own := provenance.get("ranks"), dict):
        rest["ranks"] = {rank: without(facts) if isinstance(facts, dict) else facts for rank, facts in own.items()}
    return rest


def outside_bytes_of(provenance: Mapping[str, Any], rank: int) -> dict[int, int]:
    """By the index of a rank's device, what was taken of its memory beside PyTorch."""
    told = _of_rank(provenance, rank).get("outside_bytes")
    if not isinstance(told, Mapping):
        return {}
    return {int(index): size for index, size in told.items() if str(index).isdigit() and type(size) is int and size > 0}


def machine_in(facts: Mapping[str, Any]) -> Machine:
    """What such keys tell of a machine; cells of the library still have them."""
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
        settings=TorchSettings(
            tf32_matmul=told("matmul", bool, tf32) if isinstance(tf32, Mapping) else None,
            tf32_cudnn=told("cudnn", bool, tf32) if isinstance(tf32, Mapping) else None,
            cudnn_benchmark=told("cudnn_benchmark", bool),
            deterministic=told("deterministic", bool),
            allocator=conf if isinstance(conf, str) else None,
        ),
    )


def _run(facts: Mapping[str, Any]) -> Run:
    loaders, scales = facts.get("loaders"), facts.get("host_scale")
    replayed = facts.get("replay")
    return replace(
        fitting(Run, {name: facts.get(name) for name in ("source", "clock", "argv")}),
        script=fitting(Script, facts["script"]) if isinstance(facts.get("script"), Mapping) else None,
        loaders=tuple(fitting(LoaderSettings, loader) for loader in loaders) if isinstance(loaders, list) else (),
        recorder=fitting(RecorderCost, facts["recorder"]) if isinstance(facts.get("recorder"), Mapping) else None,
        profiler=fitting(ProfilerUse, facts.get("profiler")),
        clean=fitting(CleanSteps, facts["clean"]) if isinstance(facts.get("clean"), Mapping) else None,
        host_scale=fitting(Run, {"host_scale": scales}).host_scale,
        distributed=distributed_of(facts.get("distributed")),
        replay=_replay(replayed) if isinstance(replayed, Mapping) else None,
    )


def _replay(facts: Mapping[str, Any]) -> ReplayNotes:
    """Choices and figures of the host stood among the others."""
    return replace(fitting(ReplayNotes, facts), config=fitting(ReplayConfig, facts), host=fitting(HostFigures, facts))


def _of_rank(provenance: Mapping[str, Any], rank: int) -> dict[str, Any]:
    ranks = provenance.get("ranks")
    own = ranks.get(str(rank)) if isinstance(ranks, Mapping) else None
    return {**provenance, **(own if isinstance(own, Mapping) else {})}

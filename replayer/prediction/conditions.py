"""Defines the conditions of a prediction, such as GPU, batch size and number of ranks.

    Conditions(gpu="NVIDIA A100-SXM4-40GB", batch=64).check(trace)
"""

from __future__ import annotations

from dataclasses import dataclass

from traces.model.trace import Origin, TraceError
from traces.names.cards import UNKNOWN_CARD, card_of, unknown_gpu
from traces.rates.estimate_errors import prediction_errors

_ROWS = prediction_errors()

# see docs/what_if.md
EXPECTED_ERROR = {
    Origin.MEASURED: 0.0,
    Origin.SCALED: _ROWS["networks_batch"],
    Origin.PUBLISHED: _ROWS["gpu"],
    Origin.CURVE: max(_ROWS["unseen"], _ROWS["network"]),
    Origin.ROOFLINE: max(_ROWS.values()),
}
EXPECTED_OF_DATA_PARALLEL = _ROWS["dataparallel"]
EXPECTED_OF_RANKS = _ROWS["links"]
EXPECTED_OF_SPLIT = max(_ROWS.values())  # the largest known error, because no benchmark measures sharded training

ORIGIN_NAMES = {
    Origin.MEASURED: "recorded",
    Origin.SCALED: "scaled",
    Origin.PUBLISHED: "table",
    Origin.CURVE: "curve",
    Origin.ROOFLINE: "data sheet",
}

_SLOWEST_LINK_GBPS, _FASTEST_LINK_GBPS = 0.01, 2_000.0  # from Ethernet with 100 Mbit/s to a bandwidth that no GPU link reaches


@dataclass(frozen=True)
class Conditions:
    gpu: str = ""  # name of the new GPU, or "" for the recorded one
    batch: int = 0  # new batch size, or 0
    recorded_batch: int = 0  # batch size of the recording, or 0 to read it from the recording
    length: tuple[int, int] | None = None  # recorded and new sequence length
    gpus: int = 0  # number of GPUs with nn.DataParallel, or 0
    nproc: int = 0  # number of ranks, or 0
    parallel: str = "ddp"  # how `nproc` ranks share the work: "ddp", "fsdp" or "tp"
    link_gbps: float = 0.0  # bandwidth between GPUs, or 0 for the recorded one or the data sheet's
    host_speed: float = 1.0  # speed of the new CPU divided by that of the recorded CPU

    def __post_init__(self) -> None:
        if self.gpu and card_of(self.gpu) is UNKNOWN_CARD:
            raise unknown_gpu(self.gpu)
        if self.link_gbps:
            require_link(self.link_gbps)


def short_gpu_name(name: str) -> str:
    return name.removeprefix("NVIDIA ").removeprefix("Tesla ").removeprefix("GeForce ").removeprefix("AMD Instinct ")


def require_link(gbps: float) -> None:
    if not _SLOWEST_LINK_GBPS <= gbps <= _FASTEST_LINK_GBPS:
        raise TraceError(
            f"no link between GPUs moves {gbps:g} GB/s; give 16 for PCI Express 3.0, or 450 for the NVLink of an H100"
        )

"""Returns the Python name of a collective for its name in PyTorch's C++ code.

    function_of("nccl:_all_gather_base")    # ("nccl", "all_gather_into_tensor")
    is_communication("vllm::cross_device_reduce_1stage<__half, 2>")  # True
"""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\w+):_?(\w+)")
# Names of communication kernels in NCCL and similar libraries. The names of DeepEP's kernels contain "intranode" or
# "internode". A reduction within a block or warp is not communication between GPUs.
_KERNEL = re.compile(
    r"[^<(]*(?:nccl|rccl|msccl|oneccl|nvshmem|(?:inter|intra)node|cross_device_reduce|multimem"
    r"|(?<!block)(?<!warp)(?<!block_)(?<!warp_)(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all))",
    re.IGNORECASE,
)
# Operations whose torch.distributed function has a different name
_FUNCTIONS = {
    "all_gather_base": "all_gather_into_tensor",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "broadcast_oop": "broadcast",
    "reduce_oop": "reduce",
    "all_reduce_barrier": "barrier",
    # new names of functions, and names of functions in C++, since torch 2.15
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "allGatherSingleImpl": "all_gather_into_tensor",
    "reduceScatterSingleImpl": "reduce_scatter_tensor",
    "allToAllSingleImpl": "all_to_all_single",
    "gatherImpl": "gather",
    "scatterImpl": "scatter",
}


def is_communication(kernel: str) -> bool:
    return _KERNEL.match(kernel.replace("(anonymous namespace)", "")) is not None


def backend_of(name: str) -> str:
    """Return "nccl" for "nccl2", the name of PyTorch's second implementation of NCCL, which is the default since torch 2.15."""
    return "nccl" if name == "nccl2" else name


def known_as(name: str) -> str:
    return _FUNCTIONS.get(name, name)


def function_of(name: str) -> tuple[str, str]:
    """Split the name of a collective, such as "nccl:all_reduce", into backend and function."""
    match = _RANGE.match(name)
    return (backend_of(match[1]), known_as(match[2])) if match else ("", "")

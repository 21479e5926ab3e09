"""Converts names of collectives, such as `nccl:_all_gather_base`, to the names of functions in torch.distributed.

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
# Each match is the place of a missing underscore in a name of C++ code, such as "alltoall_base" or "allGatherSingleImpl".
_MISSING_UNDERSCORE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=^all)(?=gather|reduce|to)|(?<=^allto)(?=all)")
# Operations whose torch.distributed function has a different name. Names with "single" exist since torch 2.15.
_FUNCTIONS = {
    **dict.fromkeys(("all_gather_base", "all_gather_single"), "all_gather_into_tensor"),
    **dict.fromkeys(("reduce_scatter_base", "reduce_scatter_single"), "reduce_scatter_tensor"),
    **dict.fromkeys(("all_to_all_base", "all_to_allv"), "all_to_all_single"),
    "all_reduce_barrier": "barrier",
    "gather_single": "gather",
    "isend": "send",
    "irecv": "recv",
}


def is_communication(kernel: str) -> bool:
    return _KERNEL.match(kernel.replace("(anonymous namespace)", "")) is not None


def backend_of(name: str) -> str:
    """Return "nccl" for "nccl2". Since release 2.15, PyTorch's default backend for NCCL is called "nccl2"."""
    return "nccl" if name == "nccl2" else name


def known_as(name: str) -> str:
    """Return the name of an operation in torch.distributed, for example "all_to_all_single" for "alltoall_base". A call for
    several tensors ("_coalesced") or with a separate output ("_oop") has the same name as a call for one tensor."""
    words = _MISSING_UNDERSCORE.sub("_", name.strip("_").removesuffix("Impl")).lower()
    words = words.removesuffix("_coalesced").removesuffix("_oop")
    return _FUNCTIONS.get(words, words)


def function_of(name: str) -> tuple[str, str]:
    """Split the name of a collective, such as "nccl:all_reduce", into backend and function."""
    match = _RANGE.match(name)
    return (backend_of(match[1]), known_as(match[2])) if match else ("", "")

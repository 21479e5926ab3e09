"""Returns the Python name of a collective or dtype for its name in PyTorch's C++ code.

    function_of("nccl:_all_gather_base")    # ("nccl", "all_gather_into_tensor")
    is_communication("vllm::cross_device_reduce_1stage<__half, 2>")  # True
    SCALAR_TYPES["Half"]                    # "float16"
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
}

# From element types of PyTorch's C++ to torch dtypes
SCALAR_TYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e4m3fnuz": "float8_e4m3fnuz",
    "Float8_e5m2": "float8_e5m2",
    "Float8_e5m2fnuz": "float8_e5m2fnuz",
    "Float8_e8m0fnu": "float8_e8m0fnu",
}


def is_communication(kernel: str) -> bool:
    return _KERNEL.match(kernel.replace("(anonymous namespace)", "")) is not None


def function_of(name: str) -> tuple[str, str]:
    """Split the name of a collective, such as "nccl:all_reduce", into backend and function."""
    match = _RANGE.match(name)
    return (match[1], _FUNCTIONS.get(match[2], match[2])) if match else ("", "")

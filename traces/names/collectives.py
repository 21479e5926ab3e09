"""How PyTorch's C++ calls operations between ranks and element types: in a profile's ranges and in the flight recorder alike.

function_of("nccl:_all_gather_base")    # ("nccl", "all_gather_into_tensor")
SCALAR_TYPES["Half"]                    # "float16"
"""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\w+):_?(\w+)")
# Operations that are not called as the function of torch.distributed is.
_FUNCTIONS = {
    "all_gather_base": "all_gather_into_tensor",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "broadcast_oop": "broadcast",
    "reduce_oop": "reduce",
    "all_reduce_barrier": "barrier",
}

# Element types, to torch's names.
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
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e4m3fnuz": "float8_e4m3fnuz",
    "Float8_e5m2": "float8_e5m2",
    "Float8_e5m2fnuz": "float8_e5m2fnuz",
    "Float8_e8m0fnu": "float8_e8m0fnu",
}


def function_of(name: str) -> tuple[str, str]:
    """The backend of such a name and the function of torch.distributed; ("", "") if it is not about an operation."""
    match = _RANGE.match(name)
    return (match[1], _FUNCTIONS.get(match[2], match[2])) if match else ("", "")

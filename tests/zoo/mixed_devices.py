# mypy: allow-untyped-calls
"""Evaluates calls that a GPU may reject, most of them with tensors on wrong devices. Writes the outcome of each call: the error
in one line, or the results' devices.

    python tests/zoo/mixed_devices.py RESULTS

The expressions are the first column of mixed_devices.tsv. The second column is what PyTorch 2.14.1's CUDA build says, on the
simulated device of tests/cuda (tests/cuda/test_mixed_devices.py). Lower-case names are tensors on the CPU, and upper-case names
are the same tensors on the GPU.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

TABLE = Path(__file__).with_suffix(".tsv")
_RELEASE = [int(number) for number in torch.__version__.split(".")[:2]]
_SINCE_2_15 = {  # PyTorch 2.15 changed these error messages
    "torch.linalg.inv(M.half())": "RuntimeError: linalg.inv_ex: Low precision dtypes not supported. Got torch.float16",
    "torch.ones(3, device='cuda', dtype=torch.int64).mean()": "NotImplementedError: mean(): could not infer output dtype."
    " Input dtype must be either a floating point or complex dtype. Got: Long",
}


_UNTIL_2_13 = {  # before PyTorch 2.14, the host checks that a standard deviation is not negative, and waits for the GPU
    f"synchronizing(lambda: torch.normal({mean}, V))": "RuntimeError: called a synchronizing CUDA operation"
    for mean in ("V", "0.")
}


def expected() -> dict[str, str]:
    rows = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    changed = _SINCE_2_15 if _RELEASE >= [2, 15] else _UNTIL_2_13 if _RELEASE <= [2, 13] else {}
    return {expression: said for expression, said in rows} | changed


def without_cudnn(call: Callable[[], Any]) -> Any:
    with torch.backends.cudnn.flags(enabled=False):
        return call()


def with_flash(call: Callable[[], Any]) -> Any:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return call()


def autocast(call: Callable[[], Any]) -> Any:
    with torch.autocast("cuda"):
        return call()


def deterministic(call: Callable[[], Any]) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        return call()
    finally:
        torch.use_deterministic_algorithms(False)


def deterministic_backward(call: Callable[[torch.Tensor], torch.Tensor], data: torch.Tensor) -> None:
    result = call(data.requires_grad_())
    deterministic(result.sum().backward)


def synchronizing(call: Callable[[], Any]) -> Any:
    """Raise an error if a call makes the host wait for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        return call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


class _OnTheCpu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].cpu()


def returns_cpu_gradient(x: torch.Tensor) -> None:
    _OnTheCpu.apply(x).sum().backward()


def _names() -> dict[str, Any]:
    host: dict[str, Any] = {
        "v": torch.tensor([1.0, 2.0, 3.0]),
        "s": torch.tensor(2.0),
        "m": torch.eye(3) + 1,
        "t": torch.ones(3, 3, 3),
        "q": torch.ones(1, 3, 3, 3),
        "i": torch.tensor([0, 1]),
        "b": torch.tensor([True, False, True]),
        "l": torch.tensor([0, 0, 0]),
    }
    parameters = {name: nn.Parameter(torch.ones(3, device=device)) for name, device in (("p", "cpu"), ("P", "cuda"))}
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    names: dict[str, Any] = {**host, **{name.upper(): tensor.cuda() for name, tensor in host.items()}, **parameters}
    names |= {"c1": torch.arange(4.0), "cg": torch.Generator(), "gg": torch.Generator("cuda")}
    helpers = (
        without_cudnn, with_flash, autocast, deterministic, deterministic_backward, synchronizing, returns_cpu_gradient
    )  # fmt: skip
    return names | {each.__name__: each for each in helpers} | {"torch": torch, "nn": nn, "F": F, "np": numpy}


def outcome(expression: str) -> str:
    try:
        result = eval(expression, _names())
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return " ".join(["ok", *(leaf.device.type for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with open(sys.argv[1], "w", encoding="utf-8") as results:
        for row in expected():
            print(row, outcome(row), sep="\t", file=results, flush=True)

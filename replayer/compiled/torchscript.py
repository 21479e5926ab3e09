# mypy: allow-untyped-calls
"""Compiled TorchScript code reads the device of a virtual tensor as "cuda".

    scripted = torch.jit.script(lambda x: x.device)
    show_cuda([scripted.graph])     # scripted(x) returns device(type='cuda', index=0)
    with as_in_pytorch(graphs):     # a saved file must not contain ops of the virtual GPU
        torch.jit.save(module, "module.pt")

Note [Devices in TorchScript]
    TorchScript reads devices in C++, and PyTorch's C++ code sees the device "lazy". `show_cuda` therefore replaces the nodes of
    a graph that read or choose devices by ops that run in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch

from replayer.torch_types import TorchAny

_OURS = "virtual_gpu"
_SCHEMAS = {
    "prim::device": "device(Tensor a) -> Device",
    "prim::is_cuda": "is_cuda(Tensor a) -> bool",
    "aten::cuda": "cuda(Tensor(a) self) -> Tensor(a)",
}
_TO_OURS = {node: f"{_OURS}::{node.partition('::')[2]}" for node in _SCHEMAS}
_TO_PYTORCH = {ours: node for node, ours in _TO_OURS.items()}
_PRINTED = re.compile(rf"\b(ops\.)?{_OURS}(::|\.)(\w+)")
_CHANGED: list[TorchAny] = []


@cache
def _library() -> TorchAny:
    library = torch.library.Library(_OURS, "DEF")
    for schema in _SCHEMAS.values():
        library.define(schema)
    library.impl("device", lambda tensor: tensor.device, "CompositeImplicitAutograd")
    library.impl("is_cuda", lambda tensor: tensor.is_cuda, "CompositeImplicitAutograd")
    library.impl("cuda", lambda tensor: tensor.cuda(), "CompositeImplicitAutograd")
    return library


def show_cuda(graphs: Iterable[TorchAny]) -> None:
    """Replace the nodes that read devices. The graphs must not have run yet."""
    _library()
    _CHANGED.extend([graph for graph in graphs if _replace(graph, _TO_OURS)])


def show_all_as_in_pytorch() -> None:
    for graph in _CHANGED:
        _replace(graph, _TO_PYTORCH)
    _CHANGED.clear()


@contextmanager
def as_in_pytorch(graphs: Iterable[TorchAny]) -> Iterator[None]:
    """Restore PyTorch's nodes in a block, also in functions that the graphs call."""
    restored = [graph for graph in (*_CHANGED, *graphs) if _replace(graph, _TO_PYTORCH)]
    try:
        yield
    finally:
        for graph in restored:
            _replace(graph, _TO_OURS)


def printed_as_in_pytorch(text: str) -> str:
    """Return "prim::device(%x)" for "virtual_gpu::device(%x)", and "ops.prim.device(x)" for "ops.virtual_gpu.device(x)"."""

    def of_pytorch(found: re.Match[str]) -> str:
        ops, separator, name = found.groups(default="")
        namespace = _TO_PYTORCH[f"{_OURS}::{name}"].partition("::")[0]
        return f"torch.{name}" if ops and namespace == "aten" else f"{ops}{namespace}{separator}{name}"

    return _PRINTED.sub(of_pytorch, text)


def _replace(graph: TorchAny, names: Mapping[str, str]) -> bool:
    found = [(node, new) for old, new in names.items() for node in graph.findAllNodes(old)]
    for node, new in found:
        made = graph.create(new, list(node.inputs()), 1)
        made.insertBefore(node)
        made.output().setType(node.output().type())
        node.output().replaceAllUsesWith(made.output())
        node.destroy()
    return bool(found)

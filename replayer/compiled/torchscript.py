# mypy: allow-untyped-calls
"""Compiled TorchScript code reads the device of a virtual tensor as "cuda".

    patch_around(torch._C, _jit_script_compile=compiling)   # a compiled function returns device(type='cuda', index=0)
    with as_in_pytorch(graphs):                             # a saved file must not contain ops of the virtual GPU
        torch.jit.save(module, "module.pt")

Note [Devices in TorchScript]
    TorchScript reads devices in C++, and PyTorch's C++ code sees the device "lazy". Nodes of a graph that read or choose
    devices are therefore replaced by ops that run in Python. PyTorch stores all compiled functions and methods in compilation
    units.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache

import torch

from replayer.torch_types import TorchAny, TorchFunction

_OURS = "virtual_gpu"
_NODES: dict[str, tuple[str, TorchFunction]] = {
    "prim::device": ("device(Tensor a) -> Device", lambda tensor: tensor.device),
    "prim::is_cuda": ("is_cuda(Tensor a) -> bool", lambda tensor: tensor.is_cuda),
    "aten::cuda": ("cuda(Tensor(a) self) -> Tensor(a)", lambda tensor: tensor.cuda()),
}
_TO_OURS = {node: f"{_OURS}::{node.partition('::')[2]}" for node in _NODES}
_TO_PYTORCH = {ours: node for node, ours in _TO_OURS.items()}
_PRINTED = re.compile(rf"\b(ops\.)?{_OURS}(::|\.)(\w+)")
_CHANGED: list[TorchAny] = []


class _Compiling:
    calls = 0  # number of nested compilations: PyTorch compiles a called function while it compiles the caller
    known = 0  # number of functions that have been compiled before


_COMPILING = _Compiling()


@cache
def _library() -> TorchAny:
    library = torch.library.Library(_OURS, "DEF")
    for schema, read in _NODES.values():
        library.define(schema)
        library.impl(schema.partition("(")[0], read, "CompositeImplicitAutograd")
    return library


def compiling(compile_: TorchFunction, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    """Call a function of PyTorch that compiles Python code. The compiled functions then read the device "cuda"."""
    _COMPILING.calls += 1
    try:
        return compile_(*args, **kwargs)
    finally:
        _COMPILING.calls -= 1
        if not _COMPILING.calls:  # while PyTorch compiles a function, the function has no graph
            unit: TorchAny = torch.jit._state._python_cu
            functions = unit.get_functions()
            _show_cuda(functions[_COMPILING.known :])
            _COMPILING.known = len(functions)


def in_unit(compile_: TorchFunction, unit: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    """Call a function of PyTorch that adds functions to a compilation unit, such as the functions of a file."""
    result = compile_(unit, *args, **kwargs)
    _show_cuda(unit.get_functions())
    return result


def _show_cuda(functions: Iterable[TorchAny]) -> None:
    """Replace the nodes that read devices. The functions must not have run yet."""
    _library()
    for function in functions:
        with suppress(RuntimeError):  # a function has no graph if PyTorch could not compile it
            if _replace(function.graph, _TO_OURS):
                _CHANGED.append(function.graph)


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

"""Tests that TorchScript code is printed with PyTorch's names, and reads PyTorch's devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replayer.compiled.torchscript import as_in_pytorch, in_unit, printed_as_in_pytorch, show_all_as_in_pytorch

SOURCE = """
def of(x: Tensor) -> Device:
    return x.device
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%2 : Device = virtual_gpu::device(%x)", "%2 : Device = prim::device(%x)"),
        ("%2 : bool = virtual_gpu::is_cuda(%x)", "%2 : bool = prim::is_cuda(%x)"),
        ("%2 : Tensor = virtual_gpu::cuda(%x)", "%2 : Tensor = aten::cuda(%x)"),
        ("return ops.virtual_gpu.device(x)", "return ops.prim.device(x)"),
        ("return ops.virtual_gpu.cuda(x)", "return torch.cuda(x)"),
        ("return my_virtual_gpu.device(x)", "return my_virtual_gpu.device(x)"),
    ],
)
def test_code_is_printed_with_the_names_of_pytorch(text: str, expected: str) -> None:
    assert printed_as_in_pytorch(text) == expected


def test_a_graph_has_the_nodes_of_pytorch_while_it_is_saved() -> None:
    """GIVEN a function of a file that reads a device WHEN the function is saved THEN its graph has PyTorch's node, and after
    that the node of the virtual GPU. WHEN the replay ends THEN the graph has PyTorch's node again."""
    unit: Any = torch._C.CompilationUnit()
    in_unit(lambda unit, text: unit.define(text, lambda _name: None), unit, SOURCE)
    graphs = [unit.find_function("of").graph]

    def nodes() -> list[str]:
        return [node.kind() for node in graphs[0].nodes() if "device" in node.kind()]

    assert nodes() == ["virtual_gpu::device"]
    with as_in_pytorch(graphs):
        assert nodes() == ["prim::device"]
    assert nodes() == ["virtual_gpu::device"]
    show_all_as_in_pytorch()
    assert nodes() == ["prim::device"]

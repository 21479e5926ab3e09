# mypy: allow-untyped-calls
"""Tests that `torch.utils.cpp_extension` compiles only extensions without CUDA kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from replayer.errors import NotEmulated
from replayer.surfaces.torch_utils_cpp_extension import install


def test_compiling_an_extension_with_cuda_kernels_raises_not_emulated() -> None:
    from torch.utils import cpp_extension

    compiled: list[Any] = []

    def compile_extension(name: str, sources: list[str], with_cuda: bool | None = None) -> str:
        compiled.append((name, sources, with_cuda))
        return name

    module: Any = cpp_extension
    with mock.patch.object(cpp_extension, "_jit_compile", compile_extension):
        install(torch)
        for name, sources, with_cuda in (("a", ["a.cpp", "a.cu"], None), ("b", [Path("b.cuh")], None), ("c", ["c.cpp"], True)):
            with pytest.raises(NotEmulated, match=rf"cpp_extension.load\(name='{name}'\) is not emulated"):
                module._jit_compile(name, sources, with_cuda)
        assert module._jit_compile("d", ["d.cpp"], None) == "d"
        assert module._jit_compile("e", sources=["e.cu"], with_cuda=False) == "e"
    assert compiled == [("d", ["d.cpp"], None), ("e", ["e.cu"], False)]

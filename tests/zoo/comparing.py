# mypy: allow-untyped-calls, ignore-errors
"""Provides functions for the scripts that run PyTorch's OpInfo and ModuleInfo databases on the CPU and on the virtual GPU."""

from __future__ import annotations

import sys
import types
import unittest

import torch
from torch.utils._pytree import tree_map_only

sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # torch's test harness imports it

CLOSE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def on(device, value):
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone().to(device), value)


def differs(here, there, close):
    if len(here) != len(there):
        return f"{len(here)} results for {len(there)}"
    for one, other in zip(here, there, strict=True):
        if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
            return f"{tuple(one.shape)} {one.dtype} for {tuple(other.shape)} {other.dtype}"
        if (
            one.layout is torch.strided
            and not one.is_nested
            and not torch.allclose(
                one.to(torch.complex128 if one.is_complex() else torch.float64),
                other.to(torch.complex128 if other.is_complex() else torch.float64),
                close,
                close,
                equal_nan=True,
            )
        ):
            return "values"
    return ""

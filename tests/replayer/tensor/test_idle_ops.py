"""Tests that ops that only change a shape or create an empty tensor launch no kernel. PyTorch tags or names these ops."""

from __future__ import annotations

import torch

from replayer.tensor.planning.shape_inference import launches

FULL_NAMES = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
# These ops only read or set metadata. PyTorch has no tag for them.
OF_METADATA = (
    "is_same_size.default _has_same_storage_numel.default record_stream.default _sparse_coo_tensor_with_dims.default"
    " _sparse_coo_tensor_with_dims_and_tensors.default"
).split()


def overload(full: str) -> torch._ops.OpOverload | None:
    name, _, kind = full.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, name, None), kind or "default", None)


def test_ops_that_only_reshape_or_make_an_empty_tensor_launch_no_kernel() -> None:
    ops = [op for full in FULL_NAMES if (op := overload(full)) is not None]
    idle = [op for op in ops if torch.Tag.inplace_view in op.tags]
    idle += [op for op in ops if op.__name__.startswith(("empty", "new_empty")) and "quantized" not in op.__name__]
    idle += [op for name in OF_METADATA if (op := overload(name)) is not None]
    assert len(idle) > 20
    assert [str(op) for op in idle if launches(op, True)] == []
    assert [str(op) for op in ops if torch.Tag.pointwise in op.tags and not launches(op, True)] == []
    assert not launches(torch.ops.aten.add.Tensor, False)

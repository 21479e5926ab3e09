"""Arguments that decide whether an op has a deterministic CUDA kernel, and memory that an op frees before it ends."""

from __future__ import annotations

from contextlib import nullcontext
from operator import attrgetter

import pytest
import torch

from replayer.tensor.planning.deterministic import (
    _embedding_bag_backward,
    _scatter_reduce,
    alert_not_deterministic,
    without_alerts,
)
from replayer.tensor.planning.results import _freed_at_once


def test_products_of_scatter_reduce_and_maxima_of_embedding_bag_are_not_deterministic() -> None:
    reductions = ("sum", "prod", "mean", "amax", "amin")
    assert [name for name in reductions if _scatter_reduce(None, 0, None, None, name)] == ["prod"]
    assert [_embedding_bag_backward(mode) for mode in range(3)] == ["", "", "embedding_bag_backward_cuda_max"]


@pytest.mark.parametrize(
    ("sizes", "freed"),
    [((), True), ((512, -512), True), ((512, -512, 8, -8), True), ((512, -8), False), ((512, -512, 8), False), ((8,), False)],
)
def test_memory_is_freed_at_once_if_each_request_is_followed_by_its_release(sizes: list[int], freed: bool) -> None:
    assert _freed_at_once(tuple(sizes)) is freed


@pytest.mark.parametrize(
    ("op", "number", "kernel"),  # dimensions of the index, or the reduction
    [
        ("scatter_.reduce", 2, "scatter_reduce_cuda_kernel"),
        ("scatter.value_reduce", 1, ""),  # runs as index_put_
        ("nll_loss2d_forward.default", 1, "nll_loss2d_forward_out_cuda_template"),
        ("nll_loss2d_forward.default", 0, ""),  # adds nothing up
        ("nll_loss2d_backward.default", 1, ""),
    ],
)
def test_alerts_about_nondeterministic_ops_depend_on_their_arguments(op: str, number: int, kernel: str) -> None:
    is_scatter = "scatter" in op
    args = (None, 0, torch.zeros([2] * number), None) if is_scatter else (None, None, None, number, -100)
    reduce = {"reduce": "multiply"} if is_scatter else {}
    with pytest.raises(RuntimeError, match=f"^{kernel} does not") if kernel else nullcontext():
        alert_not_deterministic(attrgetter(op)(torch.ops.aten), args, reduce)


def test_alerts_about_nondeterministic_kernels_can_be_switched_off() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with without_alerts():
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_padding_and_bilinear_sampling_have_no_deterministic_backward_kernel() -> None:
    """In deterministic mode, PyTorch's Python code avoids these kernels. A graph that was built earlier contains them."""
    named = {
        "reflection_pad3d_backward": "reflection_pad3d_backward_out_cuda",
        "replication_pad2d_backward": "replication_pad2d_backward_cuda",
        "upsample_bilinear2d_backward": "upsample_bilinear2d_backward_out_cuda",
    }
    for op, kernel in named.items():
        with pytest.raises(RuntimeError, match=f"^{kernel} does not have a deterministic implementation"):
            alert_not_deterministic(getattr(torch.ops.aten, op).default, [], {})

"""Arguments that decide whether an op has a deterministic CUDA kernel, and memory that an op frees before it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import pytest
import torch

from replayer.tensor.planning.deterministic import alert_not_deterministic, without_alerts
from replayer.tensor.planning.results import _freed_at_once
from tests.replayer.fake_gpu import use


@pytest.mark.parametrize(
    ("sizes", "freed"),
    [((), True), ((512, -512), True), ((512, -512, 8, -8), True), ((512, -8), False), ((512, -512, 8), False), ((8,), False)],
)
def test_memory_is_freed_at_once_if_each_request_is_followed_by_its_release(sizes: list[int], freed: bool) -> None:
    assert _freed_at_once(tuple(sizes)) is freed


ONE, TABLE, WHOLE = torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)
TIMES = {"reduce": "multiply"}
CALLS: list[tuple[str, Sequence[Any], dict[str, Any], str]] = [  # op, arguments, options, kernel
    *(("scatter_reduce.two", (None, 0, None, None, name), {}, "") for name in ("sum", "mean", "amax", "amin")),
    ("scatter_reduce_.two", (None, 0, None, None, "prod"), {}, "scatter_reduce_cuda_prod_"),
    ("scatter_.reduce", (None, 0, TABLE, None), TIMES, "scatter_reduce_cuda_kernel"),
    ("scatter.reduce", (None, 0, TABLE, None, "add"), {}, ""),
    ("scatter.value_reduce", (None, 0, ONE, None), TIMES, ""),  # runs as index_put_
    ("nll_loss2d_forward.default", (None, None, None, 1, -100), {}, "nll_loss2d_forward_out_cuda_template"),
    ("nll_loss2d_forward.default", (None, None, None, 0, -100), {}, ""),  # adds nothing up
    ("nll_loss2d_backward.default", (None, None, None, 1, -100), {}, ""),
    ("_embedding_bag_backward.default", [None] * 8 + [2], {}, "embedding_bag_backward_cuda_max"),
    ("_embedding_bag_backward.default", [2] * 8 + [1], {}, ""),
    ("_embedding_bag_dense_backward.default", [None] * 7 + [2], {}, "embedding_bag_backward_cuda_max"),
    ("_embedding_bag_dense_backward.default", [2] * 7 + [0, 2], {}, ""),
    ("median.dim", (ONE, 0), {}, "median CUDA with indices output"),
    ("nanmedian.default", (ONE,), {}, ""),
    ("bincount.default", (WHOLE, ONE), {}, "_bincount_cuda"),
    ("bincount.default", (WHOLE,), {}, ""),
    ("histc.default", (ONE,), {}, "_histc_cuda with floating point input"),
    ("histc.default", (WHOLE,), {}, ""),
]


def test_alerts_about_nondeterministic_ops_depend_on_their_arguments() -> None:
    for op, args, options, kernel in CALLS:
        with pytest.raises(RuntimeError, match=f"^{kernel} does not") if kernel else nullcontext():
            alert_not_deterministic(attrgetter(op)(torch.ops.aten), args, options)


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64", "bool", "uint8", "int32", "int64"])
def test_new_memory_is_filled_in_deterministic_mode_as_on_the_cpu(dtype: str) -> None:
    use()
    of = {"dtype": getattr(torch, dtype)}
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.empty(3, device=x.device, **of),
        lambda x: torch.empty_strided((2, 2), (2, 1), device=x.device, **of),
        torch.empty_like,
        lambda x: torch.empty_like(torch.zeros(3, device=x.device), **of),
        lambda x: x.new_empty(3),
        lambda x: torch.zeros(3, device=x.device).new_empty((2, 2), **of),
        lambda x: x.new_empty_strided((2, 2), (2, 1)),
        lambda x: torch.zeros(3, device=x.device).new_empty_strided((2, 2), (2, 1), **of),
        lambda x: x.clone().resize_(2),
    ]
    host = torch.tensor([1, 0, 1], **of)
    torch.use_deterministic_algorithms(True)
    for number, call in enumerate(calls):
        assert repr(call(host.cuda()).tolist()) == repr(call(host).tolist()), number


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

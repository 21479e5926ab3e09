"""Tests ops whose result size is the number of set elements of a mask. Each test runs in a fork of an interpreter that has
imported torch (warm.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replayer.tensor.tensor import VirtualTensor
from tests.replayer.fake_gpu import use


def test_masked_selection_returns_results_of_the_recorded_sizes() -> None:
    gpu = use()
    gpu.selections = {(10,): 7, (10, 4): 23}
    x: Any = torch.rand(10, 4, device="cuda")
    mask = x[:, 0] > 0
    columns = torch.arange(7, device="cuda")
    host = torch.rand(10, 4)
    wide = torch.arange(40).view(10, 4) < 23
    narrow = torch.arange(10) < 7
    for ours, real in (
        (x[mask], host[narrow]),
        (x[mask, 1:3], host[narrow, 1:3]),
        (x[:, None][mask], host[:, None][narrow]),
        (x[x > 0], host[wide]),
        (x[mask, columns % 4], host[narrow, torch.arange(7) % 4]),
        (mask.nonzero(), narrow.nonzero()),
        ((x > 0).nonzero(), wide.nonzero()),
        (torch.where(x > 0)[1], torch.where(wide)[1]),
        (torch.argwhere(mask), torch.argwhere(narrow)),
        (x.masked_select(x > 0), host.masked_select(wide)),
        (x.masked_select(mask.unsqueeze(1).expand(10, 4)), host.masked_select(wide)),
    ):
        assert type(ours) is VirtualTensor and ours.is_cuda
        assert (ours.shape, ours.stride(), ours.dtype) == (real.shape, real.stride(), real.dtype)
    assert {"index", "nonzero", "masked_select"} <= set(gpu.launched)
    assert gpu.live_bytes() > 0


def test_gradients_flow_through_a_mask() -> None:
    gpu = use()
    gpu.selections = {(6,): 2}
    x: Any = torch.rand(6, 3, device="cuda", requires_grad=True)
    loss = x[x.detach()[:, 0] > 0].pow(2).sum()
    loss.backward()
    assert x.grad.shape == x.shape and type(x.grad) is VirtualTensor


def test_a_mask_with_known_values_needs_no_recorded_size() -> None:
    use()
    x = torch.rand(4, 2, device="cuda")
    mask = torch.tensor([True, False, True, True])
    assert x[mask].shape == (3, 2)  # this mask is on the host
    assert x[mask.cuda()].shape == (3, 2)
    assert x[torch.ones(4, dtype=torch.bool, device="cuda")].shape == (4, 2)
    assert torch.zeros(5, device="cuda").nonzero().shape == (0, 1)
    assert mask.cuda().nonzero().shape == (3, 1)


def test_assignment_by_a_mask_needs_no_recorded_size() -> None:
    use()
    x = torch.rand(4, 2, device="cuda")
    x[x > 0] = 1.0
    x[x[:, 0] > 0] = torch.ones(2, device="cuda")
    assert x.shape == (4, 2)


def test_masks_and_values_on_different_devices_are_rejected() -> None:
    use()
    x = torch.rand(4, device="cuda")
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.rand(4)[x > 0]
    with pytest.raises(RuntimeError, match="same device"):
        x.masked_select(torch.ones(4, dtype=torch.bool))


def test_values_whose_count_does_not_match_the_mask_are_rejected() -> None:
    use()
    x = torch.zeros(2, 4, device="cuda")
    mask = torch.tensor([True, False, True, False], device="cuda")
    for values in (torch.ones(2, 2, device="cuda"), torch.ones(2, device="cuda"), torch.ones(1, device="cuda"), 3):
        x[:, mask] = values
    x[torch.tensor([0, 1], device="cuda"), mask] = torch.ones(2, device="cuda")
    x[0][x[0] == 7] = torch.ones(0, device="cuda")
    with pytest.raises(RuntimeError, match=r"value tensor of shape \[2, 3\] cannot be .* indexing result of shape \[2, 2\]"):
        x[:, mask] = torch.ones(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match=r"value tensor of shape \[3\] cannot be .* indexing result of shape \[2\]"):
        x.index_put_((torch.tensor([0, 1], device="cuda"), mask), torch.ones(3, device="cuda"), accumulate=True)
    rows = torch.tensor([0, 1, 1], device="cuda")
    for wrong in (lambda: x[rows, mask], lambda: x.__setitem__((rows, mask), 1)):
        with pytest.raises(IndexError, match=r"indexing tensors could not be broadcast together with shapes \[3\], \[2\]"):
            wrong()

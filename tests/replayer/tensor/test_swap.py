# mypy: allow-untyped-calls
"""Tests that tensors with weak references from C++ can be swapped, and that the references stay valid."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from replayer.errors import NotEmulated
from replayer.tensor import swap
from tests.replayer.fake_gpu import use

WEAK_REFERENCE: Any = torch._C.__dict__["_WeakTensorRef"]  # PyTorch declares no type for this class
CPU = [torch.profiler.ProfilerActivity.CPU]


def weak_references(tensor: Any) -> int:
    place = swap._weak_count_offset()
    assert place is not None
    return int(swap._word(tensor, place[0]).value - place[1])


def test_weak_references_of_a_tensor_are_counted() -> None:
    tensor = torch.zeros(3)
    assert weak_references(tensor) == 0
    references = [WEAK_REFERENCE(tensor) for _ in range(5)]
    assert weak_references(tensor) == 5
    del references
    assert weak_references(tensor) == 0


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ([[1, 1], [5, 5], [2, 5], [1, 1]], [16, 2]),
        ([[1, 1], [5, 5], [2, 4], [1, 1]], []),  # the count grows by two, not by three
        ([[1, 4], [5, 5], [2, 5], [1, 1]], []),  # two words grow by three
        ([[1, 1], [5, 5], [2, 2], [1, 1]], []),
    ],
)
def test_the_weak_reference_counter_is_the_memory_word_that_grows_with_references(
    words: list[list[int]], place: list[int]
) -> None:
    """Each item of `words` contains a word's values at 8, 12, 16 and 20 bytes, before and after the references are created."""
    values = [words[at][turn] for turn in (0, 1) for at in range(4)]
    with mock.patch.object(swap, "_word", side_effect=[SimpleNamespace(value=value) for value in values]):
        assert [*(swap._weak_count_offset.__wrapped__() or ())] == place


def test_swapped_tensors_exchange_values_and_keep_their_references() -> None:
    tensor, other = torch.zeros(3), torch.ones(2)
    references = [WEAK_REFERENCE(tensor) for _ in range(2)]
    swap.swap(tensor, other)
    assert tensor.tolist() == [1, 1] and other.tolist() == [0, 0, 0]
    assert (weak_references(tensor), weak_references(other)) == (0, 2)  # the references still refer to the tensor with zeros
    del other
    assert all(reference.expired() for reference in references)
    del references
    assert tensor.tolist() == [1, 1]


@pytest.mark.parametrize("running", [True, False])
def test_a_profiled_model_moves_to_the_gpu_and_back(running: bool) -> None:
    model, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = model.weight.detach().clone()
    profile = torch.profiler.profile(activities=CPU, record_shapes=True, profile_memory=True)
    profile.start()
    model(x).sum().backward()
    if not running:
        profile.stop()
    model.cuda()
    assert model.weight.is_cuda and model.weight.grad is not None and model.weight.grad.is_cuda
    assert optimizer.param_groups[0]["params"][0] is model.weight
    model(x.cuda()).sum().backward()
    model.cpu()
    assert torch.equal(model.weight, before)
    if running:
        profile.stop()
    rows = {row.key: row.count for row in profile.key_averages(group_by_input_shape=True)}
    assert rows["aten::linear"] >= 1
    del profile  # deleting the profile frees the objects that it referred to
    assert torch.equal(model.weight, before)


def test_a_weight_in_the_autocast_cache_can_be_moved_to_another_device() -> None:
    model = torch.nn.Linear(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.ones(2, 8))
        model.cuda()
    assert model.weight.is_cuda


def test_swapping_tensors_raises_not_emulated_if_references_cannot_be_counted() -> None:
    tensor = torch.zeros(3)
    reference = WEAK_REFERENCE(tensor)
    with mock.patch.object(swap, "_weak_count_offset", lambda: None), pytest.raises(NotEmulated, match=r"delete the profile"):
        swap.swap(tensor, torch.ones(2))
    del reference


def test_a_gradient_stays_on_its_device_if_its_parameter_is_moved() -> None:
    use()
    weight: Any = torch.nn.Parameter(torch.ones(2))
    (weight * 2).sum().backward()
    gradient = weight.grad
    weight.data = torch.ones(3, device="cuda")
    assert weight.is_cuda and weight.grad is gradient and not gradient.is_cuda
    weight.data = torch.ones(2)
    (weight * 2).sum().backward()
    assert weight.grad is gradient and gradient.tolist() == [4, 4]
    weight.data = torch.ones(2, device="cuda")
    weight.grad = None
    weight.data = torch.ones(2)
    assert weight.grad is None


def test_a_parameter_that_moved_away_and_back_still_receives_gradients() -> None:
    """FSDP with offloaded parameters registers such a hook, and moves parameters between the passes."""
    use()
    weight, seen = torch.nn.Parameter(torch.ones(2)), []
    weight.data = torch.ones(2, device="cuda")
    accumulate: Any = weight.expand_as(weight).grad_fn
    accumulate.next_functions[0][0].register_hook(lambda *_: seen.append(weight.grad))
    loss = (weight * 2).sum()
    weight.data = torch.ones(1)
    weight.data = torch.ones(2, device="cuda")
    loss.backward()
    assert seen == [weight.grad] and weight.grad is not None
    assert (weight.grad.device.type, weight.grad.shape) == ("cuda", (2,))


def test_an_autograd_graph_releases_the_gpu_memory_of_a_moved_parameter() -> None:
    """GIVEN a script that keeps its last loss WHEN the model moves to the CPU THEN the GPU memory of the model's weight (2 KiB)
    is free, because the autograd graph refers to the parameter itself. If the model moves back to the GPU, gradients can still
    be computed."""
    use()
    start = torch.cuda.memory_allocated()
    weight = torch.nn.Parameter(torch.ones(512, device="cuda"))
    cubes = weight**3
    assert torch.cuda.memory_allocated() - start == 2 * 2048
    weight.data = weight.data.cpu()
    assert torch.cuda.memory_allocated() - start == 2048
    weight.data = weight.data.cuda()
    assert torch.cuda.memory_allocated() - start == 2 * 2048
    cubes.sum().backward()
    assert weight.grad is not None and weight.grad.is_cuda

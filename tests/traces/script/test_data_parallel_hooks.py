"""Tests which GPU each stage of nn.DataParallel belongs to."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from traces.script.data_parallel_hooks import DataParallelHooks


@pytest.mark.parametrize(
    ("devices", "index"),
    [
        ([1, 0], 1),
        ((torch.device("cuda", 1),), 1),
        ([], None),
        (0, 0),
        (-1, None),  # nn.DataParallel uses -1 for the CPU in output_device
        ("cuda:2", 2),
        ("cpu", None),
        (torch.device("cpu", 0), None),
        (torch.device("cuda", 3), 3),
        (None, None),
    ],
)
def test_a_data_parallel_stage_belongs_to_the_first_gpu_in_its_device_list(devices: object, index: int | None) -> None:
    assert DataParallelHooks(torch, lambda name, device: None).index(devices) == index


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_backward_pass_belongs_to_the_gpu_of_its_first_gradient(is_recorded: bool) -> None:
    parts: list[tuple[str, int | None]] = []

    def part(name: str, device: int | None) -> AbstractContextManager[Any] | None:
        parts.append((name, device))
        return nullcontext() if is_recorded else None

    backward = DataParallelHooks(torch, part)._backward("gather_backward")
    gradient = SimpleNamespace(device=torch.device("cuda", 1))
    assert backward(lambda context, *gradients: (context, gradients), "of", None, gradient) == ("of", (None, gradient))
    assert parts == [("gather_backward", 1)]

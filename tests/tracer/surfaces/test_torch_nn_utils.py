"""Tests that gradient clipping is reported from every entry point. The test runs in a fork, because torch stays patched."""

from __future__ import annotations

from tests.forked import printed_in_fork

SCRIPT = """
import torch
from tracer import state
from tracer.surfaces import install_all

install_all(torch)
calls = []

class Notes:
    def aside_called(self): calls.append(1)

state.start(Notes)
weight = torch.nn.Parameter(torch.ones(3))
weight.grad = torch.ones(3)
for clip in (
    lambda: torch.nn.utils.clip_grad_norm_([weight], 1.0),
    lambda: torch.nn.utils.clip_grad.clip_grad_norm_([weight], 1.0),
    lambda: torch.nn.utils.clip_grad_value_([weight], 1.0),
    lambda: torch.nn.utils.get_total_norm([weight.grad]),
    lambda: torch.nn.utils.clip_grads_with_norm_([weight], 1.0, torch.ones(())),
):
    calls.clear()
    clip()
    print(bool(calls))
"""


def test_every_function_that_clips_gradients_is_reported() -> None:
    assert printed_in_fork(SCRIPT).split() == ["True"] * 5

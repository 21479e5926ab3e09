"""Tests the GPU and host times of modules on a small model, with values worked out by hand."""

from __future__ import annotations

import numpy as np

from tests.traces.handmade import US
from traces.analyses.modules import ModuleNames, ModuleTime, forward_ops, module_times
from traces.combining.merge import merge_ranks
from traces.model.trace import NONE, Device, DeviceSpans, HostKind, HostSpans, Steps, Thread, Trace


def two_steps() -> Trace:
    """Return a trace of two steps of 200 us, in which a network calls a linear layer and then an addition.

    The kernels of a step take 30 us in the linear layer, 10 us for the addition, and 50 us in the layer's backward pass.
    """
    trace = Trace(devices=[Device(0, 0, "GPU")], threads=[Thread(0, 1, "main", "main")])
    rows = [
        ("nn.Module: Net_0", HostKind.PYTHON, 0, 100, NONE, NONE, NONE),
        ("nn.Module: Linear_0", HostKind.PYTHON, 10, 40, 0, NONE, NONE),
        ("aten::linear", HostKind.OP, 20, 10, 1, 5, NONE),
        ("cudaLaunchKernel", HostKind.RUNTIME, 22, 2, 2, NONE, NONE),
        ("aten::add", HostKind.OP, 60, 10, 0, 6, 0),
        ("cudaLaunchKernel", HostKind.RUNTIME, 62, 2, 4, NONE, NONE),
        ("LinearBackward0", HostKind.OP, 120, 20, NONE, 5, 1),
        ("cudaLaunchKernel", HostKind.RUNTIME, 122, 2, 6, NONE, NONE),
    ]
    both = [(step, *row) for step in range(2) for row in rows]
    trace.host = HostSpans.of(
        thread=[0] * 16,
        name=[trace.strings.add(name) for _, name, *_ in both],
        kind=[kind for _, _, kind, *_ in both],
        start_ns=[(200 * step + start) * US for step, _, _, start, *_ in both],
        duration_ns=[took * US for *_, took, _, _, _ in both],
        parent=[parent if parent == NONE else 8 * step + parent for step, *_, parent, _, _ in both],
        sequence=[number if number == NONE else 10 * step + number for step, *_, number, _ in both],
        forward_thread=[thread for *_, thread in both],
    )
    trace.device = DeviceSpans.of(
        start_ns=[(200 * step + start) * US for step in range(2) for start in (30, 70, 130)],
        duration_ns=[us * US for _ in range(2) for us in (30, 10, 50)],
        launch=[8 * step + row for step in range(2) for row in (3, 5, 7)],
    )
    trace.steps = Steps.of(number=[0, 1], start_ns=[0, 200 * US], duration_ns=[200 * US] * 2)
    return trace


def test_module_times_are_per_step_and_include_submodules() -> None:
    assert module_times(two_steps()) == [
        ModuleTime("Net_0", calls=1, forward_ns=40 * US, backward_ns=50 * US, own_ns=10 * US, host_ns=100 * US),
        ModuleTime("Net_0/Linear_0", calls=1, forward_ns=30 * US, backward_ns=50 * US, own_ns=80 * US, host_ns=40 * US),
    ]
    assert module_times(Trace()) == []


def test_a_backward_op_belongs_to_the_last_forward_op_with_its_sequence_number() -> None:
    assert forward_ops(two_steps()).tolist() == [*[NONE] * 6, 2, 2, *[NONE] * 6, 10, 10]
    without = two_steps()
    without.host.forward_thread[:] = 1
    assert forward_ops(without).tolist() == [NONE] * 16


def test_a_backward_op_belongs_to_a_forward_op_of_its_own_rank() -> None:
    """GIVEN two ranks with the same sequence numbers THEN each rank has the forward ops that it has alone."""
    own = forward_ops(two_steps())
    assert forward_ops(merge_ranks([two_steps(), two_steps()])).tolist() == [*own, *np.where(own == NONE, NONE, own + len(own))]


def test_modules_are_numbered_by_class_as_in_a_profile() -> None:
    names = ModuleNames()
    assert [names.name(one) for one in (1, "a", 2)] == ["nn.Module: int_0", "nn.Module: str_0", "nn.Module: int_1"]

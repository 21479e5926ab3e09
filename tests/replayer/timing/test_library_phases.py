"""Tests that the device time of a phase comes from the library."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replayer.recording.library_pace import COUNTED_ELSEWHERE_NS, ModelCall
from replayer.timing.steps.step_tracker import LibraryPhases
from traces.model.run import LibraryCall
from traces.model.trace import Origin


def phases(slowdown: float = 1.0, **phases_ns: int) -> LibraryPhases:
    library: Any = SimpleNamespace(phase=lambda name: (phases_ns[name], Origin.SCALED) if name in phases_ns else None)
    return LibraryPhases(library, slowdown)


def begun_ns(of: LibraryPhases, name: str) -> int:
    segment = of.begin(name)
    assert segment is not None and segment.origin is Origin.SCALED
    return segment.device_ns


@pytest.mark.parametrize(("slowdown", "took_ns"), [(1.0, 1_000), (2.5, 2_500), (0.5, 500)])
def test_a_phase_takes_its_library_time_multiplied_by_the_slowdown(slowdown: float, took_ns: int) -> None:
    of = phases(slowdown, optimizer=1_000, loss=COUNTED_ELSEWHERE_NS)
    assert begun_ns(of, "optimizer") == took_ns
    # The library gives no time for this phase, so the slowdown has no effect.
    assert begun_ns(of, "loss") == COUNTED_ELSEWHERE_NS
    assert of.begin("zero_grad") is None


@pytest.mark.parametrize(("loss_ns", "backward_ns"), [(0, 1_000), (60, 940), (99, 901), (500, 900)])
def test_a_loss_phase_shortens_the_backward_pass_by_at_most_a_tenth(loss_ns: int, backward_ns: int) -> None:
    of = phases(loss=COUNTED_ELSEWHERE_NS, backward=1_000)
    of.end("loss", of.begin("loss"), loss_ns)
    assert begun_ns(of, "backward") == backward_ns
    assert begun_ns(of, "backward") == 1_000  # The next backward pass is not shortened by the same loss.


def test_a_loss_before_another_forward_pass_does_not_shorten_the_backward_pass() -> None:
    of = phases(loss=COUNTED_ELSEWHERE_NS, forward=300, backward=1_000)
    of.end("loss", of.begin("loss"), 60)
    of.end("forward", of.begin("forward"), 300)
    assert begun_ns(of, "backward") == 1_000


@pytest.mark.parametrize(("forward_ns", "whole_ns"), [(100, 7 + 150), (0, 7 + 1)])
def test_a_model_call_adds_its_forward_pass_to_the_phase(forward_ns: int, whole_ns: int) -> None:
    call = ModelCall(LibraryCall("net", 4, True, "measured"), Origin.PHASE, {"forward": forward_ns})
    segment = phases(1.5).prolonged("forward", 7, call)
    assert (segment.name, segment.device_ns, segment.origin) == ("forward", whole_ns, Origin.PHASE)

"""The work of a simulated GPU for a few programs and recordings: every row, in golden/, for people to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.goldens import assert_golden
from tests.replayer.recordings import US, Op, Stage, make_recording, phase_recording, recording_of
from tests.replayer.timing.test_simulator import OPS, PHASES, play_step
from traces.model.trace import Origin, StepKind

GOLDEN = Path(__file__).with_name("golden")


def other_names(stage: Stage) -> None:
    stage.within("loader", wait_us=70)
    stage.within("forward", "aten::mm", "aten::gelu", wait_us=20)
    stage.within("backward", "aten::mm", "aten::gelu_backward")
    stage.within("optimizer", "aten::_foreach_add_")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)


def fewer_ops(stage: Stage) -> None:
    stage.within("loader", wait_us=130)
    stage.op("aten::mm")
    stage.within("backward", "aten::threshold_backward", wait_us=500)
    stage.within("optimizer", "aten::add_")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)


def larger_shapes(stage: Stage) -> None:
    stage.within("loader", wait_us=100)
    stage.op("aten::mm", (16, 16), (16, 16))
    stage.op("aten::relu", (16, 16))
    stage.op("aten::softmax", (1024, 1024))
    stage.within("backward", "aten::mm")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)


def evaluated(stage: Stage) -> None:
    play_step(stage)
    stage.module(grad=False)
    stage.within("loader", wait_us=40)
    stage.within("forward", "aten::mm", "aten::relu")
    stage.module(grad=False)
    stage.within("forward", "aten::mm", "aten::relu")


PROGRAMS = {of.__name__: of for of in (play_step, other_names, fewer_ops, larger_shapes, evaluated)}
STREAMS = [replace(op, stream=7 + at % 2) for at, op in enumerate(OPS)]
NESTED = [Op("aten::linear", 105, 60, children=[Op("aten::mm", 110, 20, kernel=(118, 50))]), *OPS[1:]]
RECORDINGS = {
    "plain": lambda: make_recording(PHASES, OPS, steps=3),
    "gaps": lambda: make_recording(PHASES, OPS, steps=3, period_us=700),
    "streams": lambda: make_recording(PHASES, STREAMS, steps=2),
    "nested": lambda: make_recording(PHASES, NESTED, steps=2),
    "warm_up": lambda: recording_of(
        [(StepKind.WARMUP, PHASES, OPS[:3]), (StepKind.STEADY, PHASES, OPS), (StepKind.EVALUATION, PHASES[:2], OPS[:2])]
    ),
    "phases": lambda: phase_recording({"loader": 1, "forward": 2, "backward": 3, "optimizer": 1}),
}


def played(stage: Stage, program: Callable[[Stage], None]) -> str:
    for _ in range(3):
        program(stage)
    log, stats = stage.log, stage.simulator.stats
    lines = [f"ends at {stage.clock.time_ns / US} us"]
    for name in ("steps", "kinds", "phases", "parts", "host", "device"):
        lines += [f"{name}: {row}" for row in getattr(log, name)]
    lines += [f"{Origin(origin).name}: {charged}" for origin, charged in sorted(stats.charged_ns.items()) if charged]
    lines += [f"missing {of}: {count}" for of, count in stats.missing.items()]
    return "\n".join([*lines, f"lag: {list(stats.step_lag_ns)}"]) + "\n"


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_program_on_a_recording(recording: str, program: str) -> None:
    assert_golden(GOLDEN / f"{recording}_{program}.txt", played(Stage(RECORDINGS[recording]()), PROGRAMS[program]))

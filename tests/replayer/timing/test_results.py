"""Tests that every row of the simulated GPU's work, for a few programs and recordings, equals readable golden files."""

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


def without_loader(stage: Stage) -> None:
    stage.clock.time_ns += 40 * US
    stage.within("h2d", "aten::copy_", wait_us=15)
    stage.module()
    stage.op("aten::mm")
    stage.op("aten::relu")
    stage.within("backward", "aten::mm", "aten::threshold_backward")
    stage.simulator.tracker.optimizer_stepped(stage.thread, True)


PROGRAMS = {of.__name__: of for of in (play_step, other_names, fewer_ops, larger_shapes, evaluated, without_loader)}
STREAMS = [replace(op, stream=7 + at % 2) for at, op in enumerate(OPS)]
LATER = [replace(op, start_us=op.start_us + 90, kernel=op.kernel and (op.kernel[0] + 90, op.kernel[1])) for op in OPS]
LEADING = [("other", 0, 190), *((name, start_us + 90, end_us + 90) for name, start_us, end_us in PHASES[1:])]
NESTED = [Op("aten::linear", 105, 60, children=[Op("aten::mm", 110, 20, kernel=(118, 50))]), *OPS[1:]]
RECORDINGS = {
    "plain": lambda: make_recording(PHASES, OPS, steps=3),
    "gaps": lambda: make_recording(PHASES, OPS, steps=3, period_us=700),
    "streams": lambda: make_recording(PHASES, STREAMS, steps=2),
    "leading": lambda: make_recording(LEADING, LATER, steps=3),
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
    lines += [f"{name}: {list(getattr(stats, name))}" for name in ("step_lag_ns", "step_busy_ns", "step_ops")]
    lines.append(f"uncharged: {stats.uncharged_ns}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("recording", RECORDINGS)
def test_replays_of_programs_on_recordings_equal_the_golden_files(recording: str, program: str) -> None:
    assert_golden(GOLDEN / f"{recording}_{program}.txt", played(Stage(RECORDINGS[recording]()), PROGRAMS[program]))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_replay_with_recorded_waits_for_data_equals_the_golden_file(program: str) -> None:
    stage = Stage(RECORDINGS["gaps"](), pad_loader=True)
    assert_golden(GOLDEN / f"padded_{program}.txt", played(stage, PROGRAMS[program]))

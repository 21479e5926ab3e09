"""Tests that the replay of a real recording with its own ops has the recorded times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from replayer.op_signature import OpSignature
from replayer.recording.recorded_step import Instance, RecordedSegment
from tests.replayer.recordings import Stage
from tests.traces.handmade import training
from traces.kineto import read_kineto
from traces.model.trace import Origin, Trace
from traces.script.phase_rule import PLAIN

EXPLICIT = ("loader", "h2d", "backward", "zero_grad", "optimizer")


def outermost(segment: RecordedSegment) -> list[tuple[str, Instance]]:
    """Return the outermost recorded ops with kernels of a segment, in order."""
    found = [(key.partition("|")[0], one) for key, ones in segment.exact.items() for one in ones]
    found.sort(key=lambda item: (item[1].start_ns, -item[1].end_ns))
    played: set[int] = set()
    chosen = []
    for name, one in found:
        if one.kernels[0] not in played:
            played.update(one.kernels)
            chosen.append((name, one))
    return chosen


def play_all(stage: Stage) -> None:
    """Replay every recorded step op by op. The host waits for each pageable copy, as the recorded host did."""
    pageable = {i for i, text in enumerate(stage.recording.trace.strings.texts) if "Pageable" in text}
    tracker = stage.simulator.tracker
    for step in stage.recording.steps:
        for (phase, _), segment in step.segments.items():
            if phase in EXPLICIT:
                tracker.enter(stage.thread, phase)
            for name, one in outermost(segment):
                signature = OpSignature(name, one.shapes, (one.dtype,) * len(one.shapes))
                if phase in ("forward", "other"):
                    signature.phase_class = PLAIN
                end_ns = stage.simulator.play(stage.thread, stage.stream, signature, stage.clock.now_ns())
                if any(step.kernels[k].name in pageable for k in one.kernels):
                    stage.simulator.scheduler.block(stage.thread, end_ns)
            if phase == "loader":
                stage.clock.time_ns += segment.host_ns
            tracker.leave(stage.thread, phase)
        tracker.optimizer_stepped(stage.thread, True)


@pytest.mark.program
@pytest.mark.parametrize("name", ["v100_resnet50_workers0", "v100_resnet50_workers4", "v100_ddp_memory_rank1of2"])
def test_replaying_the_recorded_ops_gives_the_recorded_step_times(shared_traces: Path, name: str) -> None:
    trace = read_kineto(shared_traces / f"{name}.json.gz")
    stage = Stage(trace)
    play_all(stage)
    played = np.array([end - start for start, end, _ in stage.log.steps])
    # Two recorded steps are about 70 us apart, and launch times are accurate to one microsecond.
    assert np.abs(played / trace.steps.duration_ns - 1).max() < 0.001
    charged = stage.simulator.stats.charged_ns
    assert charged[Origin.EXACT] == sum(charged.values())
    assert not any(stage.simulator.stats.step_lag_ns)


def test_recorded_time_before_the_first_phase_belongs_to_the_step() -> None:
    """GIVEN recorded steps with 20 us before their first phase WHEN the steps are replayed THEN each step is 20 us longer."""

    def played(trace: Trace) -> list[int]:
        stage = Stage(trace)
        play_all(stage)
        return [end - start for start, end, _ in stage.log.steps]

    without = training(steps=3, loader_us=0)
    with_it = training(steps=3)
    with_it.phases.name[with_it.phases.name == with_it.strings.find("loader")] = with_it.strings.add("other")
    assert np.subtract(played(with_it), played(without)).tolist() == [20_000] * 3


def test_every_kernel_of_the_v100_recording_starts_at_its_recorded_time(shared_traces: Path) -> None:
    trace = read_kineto(shared_traces / "v100_resnet50_workers0.json.gz")
    stage = Stage(trace)
    play_all(stage)
    starts = np.array([row["start_ns"] for row in stage.log.device])
    steps = np.array([start for start, _, _ in stage.log.steps])
    order = np.argsort(trace.device.start_ns, kind="stable")
    recorded = trace.device.start_ns[order]
    assert len(starts) == len(recorded) == 9096
    # Sort kernels by their launch. The host runs ahead, so a kernel may start in the step after its launch.
    launches = trace.host.start_ns[trace.device.launch[order]]
    launch_step = np.searchsorted(trace.steps.start_ns, launches, side="right") - 1
    error = (np.sort(starts) - steps[launch_step]) - (recorded - trace.steps.start_ns[launch_step])
    # If all kernels had the same latency and gap, the median error would be 126 us. With each kernel's own latency and gap,
    # the error is a few us. The host needs this time to return from the two blocking copies of a step.
    assert np.percentile(np.abs(error), 50) <= 30_000
    assert np.percentile(np.abs(error), 99) <= 60_000

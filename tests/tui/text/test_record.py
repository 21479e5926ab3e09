"""Tests the last lines of `trace record`, which say what is missing from the recording, why, and how to record it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from traces.model.run import CleanSteps, ProfilerUse, RecorderNotes, Run
from traces.model.trace import Device, DeviceKind, DeviceSpans, Phases, StepKind, Steps, Strings, Trace, Untimed
from traces.script.configuration import RecordConfig
from tui.text.record import lack_lines, record_lines


def recording(run: Run, untimed: tuple[Untimed, ...] = (), kernels: int = 0) -> Trace:
    strings = Strings()
    name = strings.add("kernel")
    steps = Steps.of(number=range(len(untimed)), untimed=untimed) if untimed else Steps.empty()
    device = DeviceSpans.of(name=[name] * kernels, kind=[DeviceKind.KERNEL] * kernels) if kernels else DeviceSpans.empty()
    phases = Phases.of(step=[0], name=[name], device=[0])
    return Trace(steps=steps, phases=phases, device=device, strings=strings, devices=[Device(0, 0, "GPU")], runs={0: run})


@pytest.mark.parametrize(
    ("run", "kernels", "line"),
    [
        (Run(profiler=ProfilerUse((3, 4))), 7, None),
        (Run(), 0, None),
        (
            Run(profiler=ProfilerUse((3, 4), warnings=("failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)",))),
            0,
            "no kernels were recorded: the process lacks the privilege to record kernels, which the NVIDIA driver gives",
        ),
        (
            Run(profiler=ProfilerUse((3, 4))),
            0,
            "no kernels were recorded: torch.profiler reported no device work; run trace doctor",
        ),
        (
            Run(profiler=ProfilerUse((), "the script was already profiling itself")),
            0,
            "no kernels were recorded: the script was already profiling",
        ),
    ],
)
def test_missing_kernels_are_reported_with_a_reason_and_a_remedy(run: Run, kernels: int, line: str | None) -> None:
    lines = lack_lines(recording(run, kernels=kernels))
    assert len(lines) == (line is not None) and (line is None or lines[0].startswith(line))


@pytest.mark.parametrize(
    ("training", "evaluation", "config", "line"),
    [
        (14, 3, RecordConfig(), "the script ran 14 training steps, but the first profiled step is step 15; run more"),
        (1, 0, RecordConfig(), "the script ran 1 training step, but the first profiled step is step 15; run more"),
        (0, 4, RecordConfig(warmup=0, clean=3), "the script ran 4 evaluation steps, but the first profiled step is step 5;"),
        (15, 0, RecordConfig(), None),  # the profile is missing for another reason
        (14, 0, RecordConfig(grain="phase"), None),
        (0, 0, RecordConfig(), None),  # the script was killed in its first step
    ],
)
def test_record_names_options_that_help_if_the_script_ended_before_the_profile(
    training: int, evaluation: int, config: RecordConfig, line: str | None
) -> None:
    """3 warm-up steps and 10 clean steps come first. The profiler starts in step 14, so the first profiled step is step 15."""
    trace = recording(Run(recorder=RecorderNotes(config=config)))
    kinds = [StepKind.STEADY] * training + [StepKind.EVALUATION] * evaluation
    trace = replace(trace, steps=Steps.of(number=range(len(kinds)), kind=kinds) if kinds else Steps.empty())
    assert lack_lines(trace, has_failed=True) == []  # A crashed script could not run more steps.
    lines = lack_lines(trace)
    assert len(lines) == (line is not None) and (line is None or lines[0].startswith(f"no kernels were recorded: {line}"))


def test_info_lists_why_device_times_are_missing() -> None:
    run = Run(recorder=RecorderNotes(device_lost="CUDA error: device-side assert triggered"))
    untimed = (Untimed.NO, Untimed.CAPTURE, Untimed.PROFILE, Untimed.PROFILE, Untimed.DEVICE_LOST)
    assert lack_lines(recording(run, untimed)) == [
        "1 step has no device times: a CUDA graph was being captured, which allows no timing events",
        "2 steps have no device times: the script ran its own profiler",
        "1 step has no device times, starting with step 4: CUDA error: device-side assert triggered",
    ]


def test_record_reports_no_missing_kernels_if_the_script_used_no_gpu() -> None:
    """GIVEN a profile that lists the machine's GPU WHEN the script ran steps without using the GPU THEN no kernels are missing.
    Without a complete step, it is unknown whether the script used the GPU."""
    trace = Trace(devices=[Device(0, 0, "GPU")], runs={0: Run(profiler=ProfilerUse((3, 4)))})
    steps = Steps.of(number=[3, 4])
    assert lack_lines(replace(trace, steps=steps)) == ["no device times: the script used no GPU on this machine"]
    assert lack_lines(replace(trace, runs={0: Run()})) == []


def test_record_prints_how_long_steps_after_the_profile_take(tmp_path: Path) -> None:
    kinds = StepKind.WARMUP, StepKind.STEADY, StepKind.PROFILED, StepKind.AFTER_PROFILE, StepKind.AFTER_PROFILE
    steps = Steps.of(number=range(5), kind=kinds, duration_ns=[90_000_000, 28_000_000, 50_000_000, 34_000_000, 36_000_000])
    run = Run(recorder=RecorderNotes(overhead_share=0.01), clean=CleanSteps(1, 28_000_000, 50_000_000, 50 / 28))
    path = tmp_path / "t.msgpack"
    path.write_bytes(bytes(100))
    lines = record_lines(Trace(steps=steps, runs={0: run}), path, ["train.py"])
    assert lines[0] == f"wrote {path} (100 B): 5 steps (1 warm-up, 1 clean, 1 profiled, 2 after the profile) of train.py"
    after = "and 35.0 ms for one after the profile"
    assert lines[1] == f"the host takes 28.0 ms for a clean step, 50.0 ms for a profiled one, {after}"


def test_lost_kernels_are_reported_with_a_reason_and_a_remedy(tmp_path: Path) -> None:
    trace = recording(Run(profiler=ProfilerUse((3, 4))), kernels=38)
    trace.problems = {"lost-kernel": 10}
    (tmp_path / "r.msgpack").touch()
    lines = record_lines(trace, tmp_path / "r.msgpack", ["train.py"])
    assert lines[-2] == (
        "The recording lacks 10 of 48 kernels, so idle time is not reliable. The profiler did not report them. Record again,"
        " and if this repeats, profile fewer steps (--profiled-steps)."
    )

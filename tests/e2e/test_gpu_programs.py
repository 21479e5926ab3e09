"""Tests how benchmarks/gpu_programs.py compares a recorded run with a run without the recorder."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu_programs import (
    CASES,
    PACED,
    PROGRAMS_FOLDER,
    ROOT,
    Case,
    Checked,
    Ended,
    comparable,
    differences,
    lines_of,
    run_in_session,
    steps_of,
)
from tests.replayer.recordings import phase_recording
from traces.format.trace_file import save
from traces.model.trace import StepKind

BARE = Ended(1, "step 3\n", "a warning\nValueError: bad\n", 9.0, 0.5, ())


def test_messages_of_the_recorder_and_varying_numbers_do_not_count_as_differences() -> None:
    bare = replace(BARE, errors="CUDA out of memory. GPU 0 has 3.10 MiB free. Process 812 has 1.20 GiB in use.\n")
    said = "trace: wrote x.msgpack\nCUDA out of memory. GPU 0 has 2.00 MiB free. Process 9 has 1.21 GiB in use.\n"
    assert list(differences(bare, replace(bare, errors=said, seconds=14.0, end_s=2.4))) == []


def test_each_difference_between_two_runs_is_named() -> None:
    recorded = Ended(139, "", "a warning\na warning\n", 9.0, 2.6, ("python child.py",))
    assert list(differences(BARE, recorded)) == [
        "exit code 139, without the recorder 1: a warning",
        "other output: '', without the recorder 'step 3'",
        "only with the recorder: a warning",
        "only without the recorder: ValueError: bad",
        "ended 2.60 s after its last mark, without the recorder 0.50 s",
        "left a process: python child.py",
    ]
    assert list(differences(BARE, replace(recorded, is_timed_out=True))) == ["did not end within 9 s: a warning"]


def test_a_script_that_ends_normally_may_take_longer_at_its_end() -> None:
    """The recorder reads the profile at the end of a script, so the time limit holds only after errors."""
    sound = replace(BARE, exit_code=0)
    assert list(differences(sound, replace(sound, end_s=9.0))) == []


def test_a_traceback_is_compared_without_the_recorders_frames() -> None:
    frames = f'''Traceback (most recent call last):
  File "train.py", line 9, in <module>
    loss.backward()
  File "{ROOT}/traces/script/patching.py", line 315, in inside
    result = call(*args, **kwargs)
             ^^^^^^^^^^^^^^^^^^^^^
  File "torch/_tensor.py", line 630, in backward
    torch.autograd.backward(
ValueError: bad
'''
    assert comparable(frames) == [
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "    loss.backward()",
        '  File "torch/_tensor.py", line 630, in backward',
        "    torch.autograd.backward(",
        "ValueError: bad",
    ]


def test_numbers_that_a_script_prints_are_compared() -> None:
    assert comparable("kernels 34 events 200\n") == ["kernels 34 events 200"]


def test_a_run_reports_when_the_script_ended_and_which_processes_still_run(tmp_path: Path) -> None:
    """GIVEN a script that sleeps after its last mark and leaves a child process THEN the run reports both, and ends the
    child."""
    (tmp_path / "marks").mkdir()
    script = f"""
import os, subprocess, sys, time
sys.path.insert(0, {str(PROGRAMS_FOLDER)!r})
os.environ["MARKS"] = {str(tmp_path / "marks")!r}
from marks import timed
with timed("forward"):
    print("hello", flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)  # left"])
time.sleep(0.3)
os._exit(5)
"""
    ended = run_in_session([sys.executable, "-c", script], tmp_path, {}, lambda: False)
    assert (ended.exit_code, ended.output, ended.is_timed_out) == (5, "hello\n", False)
    assert ended.end_s is not None and 0.3 <= ended.end_s < 3
    assert len(ended.left) == 1 and "time.sleep(60)" in ended.left[0]


def test_a_run_ends_when_the_time_is_up(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    deadline = time.monotonic() + 0.5
    ended = run_in_session(
        [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, {}, lambda: time.monotonic() > deadline
    )
    assert ended.is_timed_out and ended.exit_code == 137 and ended.end_s is None


def test_every_listed_program_has_an_existing_script() -> None:
    assert set(PACED) <= set(CASES)
    assert all((PROGRAMS_FOLDER / case.script).exists() for case in CASES.values())


def test_an_unhandled_keyboard_interrupt_gives_one_of_two_exit_codes() -> None:
    interrupt = CASES["interrupt"]
    assert [interrupt.has_exit_code(replace(BARE, exit_code=code)) for code in (130, 1, 0)] == [True, True, False]
    assert not CASES["terminate"].has_exit_code(BARE)


def test_clean_and_profiled_training_steps_are_counted(tmp_path: Path) -> None:
    """Steps after a profile are counted, too. Evaluation steps are not counted."""
    trace = phase_recording({"forward": 1}, steps=4)
    trace.steps.kind[:] = [StepKind.STEADY, StepKind.PROFILED, StepKind.AFTER_PROFILE, StepKind.EVALUATION]
    file = tmp_path / "a.msgpack"
    save(trace, file)
    assert steps_of(file, Case("a.py", steps=3)) == (3, [])
    assert steps_of(file, Case("a.py", steps=5)) == (3, ["3 steps, not 5"])
    assert steps_of(file, Case("a.py", steps=5, spare_steps=2)) == (3, [])
    file.write_bytes(b"nothing")
    assert steps_of(file, Case("a.py"))[1][0].startswith("unreadable: ")


def test_the_summary_counts_results_and_lists_each_fault_once() -> None:
    rows = [
        Checked("amp", "bare"),
        Checked("amp", "kernel", "failed", ["other output"]),
        Checked("amp", "phase"),
        Checked("gan", "kernel", "failed", ["23 steps, not 24", "other output"]),
    ]
    assert lines_of(rows) == [
        "1 bare ok, 2 recorded failed, 1 recorded ok",
        "failed: other output (amp kernel, gan kernel)",
        "failed: 23 steps, not 24 (gan kernel)",
    ]


def test_memory_of_other_processes_is_ignored_in_out_of_memory_messages() -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB. 10.00 GiB is free.{} Including non-PyTorch memory"
    others = [" Process 7 has 1.25 GiB memory in use." * count for count in (1, 3)]
    assert comparable(text.format(others[0])) == comparable(text.format(others[1]))

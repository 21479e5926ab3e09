"""Tests that recording never harms the script. If the device fails, the script ends as it would without the recorder, and the
output lists missing data."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.gpu_programs import CASES, Commands, Programs
from tests.cuda.running import BIN, Program, Run, record, run
from traces.format.trace_file import load
from traces.model.trace import StepKind, Untimed

pytestmark = pytest.mark.cuda

KERNELS_PER_STEP = 16  # programs/faults.py runs these kernels, and the last one is the optimizer's
EXTRA_S = 2  # after a failure, a recorded run may take this much longer
PROGRAMS_FOLDER = Path(__file__).parent / "programs"


def _both(device: Path, program: Program, folder: Path, grain: str = "kernel", **settings: str) -> tuple[Run, Run, float]:
    """Return the native run, the recorded run, and by how many seconds the failure made the recorded run longer."""
    native = run(device, program, folder / "native", **settings)
    start = time.monotonic()
    sound = record(device, program, grain, folder / "sound")
    between = time.monotonic()
    recorded = record(device, program, grain, folder / "recorded", **settings)
    assert sound.exit_code == 0, sound.errors[-2000:]
    return native, recorded, time.monotonic() - between - (between - start)


@pytest.mark.parametrize("grain", ["kernel", "phase"])
def test_the_recorder_does_not_change_how_a_device_side_assert_ends_the_script(
    device: Path, tmp_path: Path, grain: str
) -> None:
    """GIVEN a device-side assert in step 31 THEN a recorded script fails with its own message and exit code. The recorder adds
    no traceback and no warning. The file has the steps before the fault."""
    # The optimizer's kernel fails, so the main thread gets the error. If torch's backward thread gets an
    # error, it can still be running when Python ends, and then the process sometimes aborts, also without the recorder.
    settings = {"SIMGPU_ERROR_AT_LAUNCH": str(31 * KERNELS_PER_STEP)}
    native, recorded, extra_s = _both(device, Program("faults.py", ("plain",)), tmp_path, grain, **settings)
    assert native.exit_code == recorded.exit_code == 1, native.errors[-2000:]
    assert "device-side assert triggered" in recorded.errors
    assert recorded.errors.count("Traceback") == native.errors.count("Traceback")
    assert recorded.errors.count("CUDA warning") == native.errors.count("CUDA warning") == 0
    done = sum(1 for work in native.logs[0].work if "multi_tensor_apply" in work.name)
    assert 20 <= done < 40
    steps = recorded.trace.steps
    assert done - 2 <= len(steps) <= done + 1
    # Rows are written after half a second, or later on a busy machine.
    assert (steps.untimed == Untimed.NO).sum() > len(steps) // 10
    assert extra_s < EXTRA_S


def _seconds_to_end(device: Path, folder: Path, *words: str) -> float:
    """Return the seconds from the time when the script gives up until its process ends. A zombie process counts as ended."""
    environment = dict(os.environ, SIMGPU_DEVICES="1", SIMGPU_LOG=str(folder), SIMGPU_HANG_AT_LAUNCH=str(30 * 17))
    environment["PATH"] = f"{BIN}:{environment['PATH']}"
    command = [str(device), *words, str(PROGRAMS_FOLDER / "faults.py"), "lost peer"]
    running = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True)
    note = folder / "gave_up"
    while not (note.exists() and len(note.read_text().split()) == 2):
        assert running.poll() is None, "the script ended before it gave up"
        time.sleep(0.01)
    process, gave_up_ns = note.read_text().split()
    while _runs(Path(f"/proc/{process}/stat")):
        time.sleep(0.005)
    ended_ns = time.monotonic_ns()
    assert running.communicate()[0].splitlines()[0] == "gave up" and running.returncode == 3
    return (ended_ns - int(gave_up_ns)) / 1e9


def _runs(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("grain", ["kernel", "phase"])
def test_a_script_on_a_hung_device_ends_without_delay_and_keeps_its_steps(device: Path, tmp_path: Path, grain: str) -> None:
    """GIVEN a kernel that never ends WHEN the script gives up THEN it exits at most 2 seconds later than without the recorder.
    The file has the steps that the device finished."""
    (tmp_path / "native").mkdir()
    native_s = _seconds_to_end(device, tmp_path / "native", "python")
    file = tmp_path / "recording.msgpack"
    recorded_s = _seconds_to_end(device, tmp_path, "trace", "record", "-o", str(file), "--grain", grain)
    assert recorded_s - native_s < EXTRA_S
    steps = load(file).steps
    timed = int((steps.untimed == Untimed.NO).sum())
    assert timed >= 28 and (steps.untimed[timed:] == Untimed.DEVICE_LOST).all()


@pytest.mark.parametrize("grain", ["kernel", "phase"])
def test_if_another_rank_is_killed_a_rank_ends_soon_and_keeps_its_steps(
    device: Path, tmp_path: Path, grain: str
) -> None:
    """GIVEN rank 1 is killed WHEN rank 0 is terminated in its all-reduce THEN rank 0 has its usual exit code. It ends at most 2
    seconds later than without the recorder, and the file contains its steps."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        program = Program("lost_peer.py", (str(free.getsockname()[1]),), gpus=2)
    native, recorded = run(device, program, tmp_path / "native"), record(device, program, grain, tmp_path / "recorded")
    (code, seconds), (native_code, native_seconds) = recorded.output.split(), native.output.split()
    assert (recorded.exit_code, code) == (native.exit_code, native_code) == (3, str(-signal.SIGTERM)), recorded.errors[-2000:]
    assert float(seconds) - float(native_seconds) < EXTRA_S
    steps = recorded.trace.steps
    assert {int((steps.rank == rank).sum()) for rank in (0, 1)} == {12}
    # The last step of a rank may have no GPU times, because its last event was pending.
    assert (steps.untimed == Untimed.NO).sum() >= 22


@pytest.mark.parametrize(("setting", "word"), [("SIMGPU_CUPTI_DENIED", "privilege"), ("SIMGPU_CUPTI_TAKEN", "profiler")])
def test_the_output_of_record_explains_why_kernels_were_not_recorded(
    device: Path, tmp_path: Path, setting: str, word: str
) -> None:
    """GIVEN a CUPTI that cannot be started THEN the script runs as usual. The output explains why there are no kernels."""
    recorded = record(device, Program("faults.py", ("plain",)), "kernel", tmp_path, **{setting: "1"})
    assert (recorded.exit_code, recorded.output) == (0, "done\n")
    assert not recorded.trace.device.is_work.any()
    said = [line for line in recorded.errors.splitlines() if line.startswith("trace:")]
    assert any("kernel" in line and word in line for line in said), said


def test_kernels_that_cupti_has_lost_are_reported_as_missing(device: Path, tmp_path: Path) -> None:
    """GIVEN a CUPTI that loses every fifth record THEN the output says how many kernels are missing, why, and what to do."""
    recorded = record(device, Program("faults.py", ("plain",)), "kernel", tmp_path, SIMGPU_DROP_EVERY="5")
    assert (recorded.exit_code, recorded.output) == (0, "done\n")
    said = [line for line in recorded.errors.splitlines() if line.startswith("trace:")]
    # Each of three profiled steps has 16 kernels.
    line = next(line for line in said if re.search(r"The recording lacks \d+ of 48 kernels", line))
    assert "The profiler did not report them." in line and "--profiled-steps" in line


@pytest.mark.parametrize("grain", ["kernel", "phase"])
def test_recording_a_cpu_script_creates_no_cuda_context(device: Path, tmp_path: Path, grain: str) -> None:
    """GIVEN a recorded process that trains on the CPU THEN it has no CUDA context, and its forked child can use the GPU."""
    recorded = record(device, Program("on_cpu.py"), grain, tmp_path)
    assert (recorded.exit_code, recorded.output) == (0, "1.0\n"), recorded.errors[-2000:]
    (log,) = recorded.logs
    assert [kind for kind, _, _, _ in log.notes] == ["context"]  # only the child has created a context


@pytest.mark.parametrize("what", ["second device", "rank 1"])
def test_recording_creates_no_context_on_a_device_that_the_script_does_not_use(device: Path, tmp_path: Path, what: str) -> None:
    """GIVEN a script that uses only cuda:1 WHEN cuda:0 is the current device of a thread THEN still only cuda:1 has a CUDA
    context. The phases have the times of cuda:1."""
    program = Program("faults.py", (what,), gpus=2)
    native = run(device, program, tmp_path / "native")
    recorded = record(device, program, "phase", tmp_path / "recorded")
    assert recorded.exit_code == 0, recorded.errors[-2000:]

    def contexts(one: Run) -> list[int]:
        return [number for kind, number, _, _ in one.logs[0].notes if kind == "context"]

    assert contexts(recorded) == contexts(native) == [1]
    trace = recorded.trace
    later = trace.phases.take(trace.phases.step >= 2)
    assert {trace.devices[int(row)].index for row in later.device} == {1}


@pytest.mark.parametrize("grain", ["kernel", "phase"])
def test_graph_captures_survive_the_start_and_end_of_a_profile(device: Path, tmp_path: Path, grain: str) -> None:
    """GIVEN graph captures at the times when a profile would start or end THEN no capture fails."""
    recorded = record(device, Program("late_capture.py"), grain, tmp_path)
    assert (recorded.exit_code, recorded.output) == (0, "done\n"), recorded.errors[-2000:]
    captures = [text for kind, _, _, text in recorded.logs[0].notes if kind == "capture"]
    assert captures == ["begun", "ended"] * 3


@pytest.mark.parametrize("grain", ["kernel", "phase"])
def test_the_recorder_does_not_change_what_a_script_sees_in_its_own_profile(device: Path, tmp_path: Path, grain: str) -> None:
    """GIVEN a script that profiles itself THEN its profile has the same events, and the recorder profiles later steps. An
    observer of failed allocations is not called."""
    native = run(device, Program("profiles_itself.py", ("8",)), tmp_path / "native")
    recorded = record(device, Program("profiles_itself.py", ("8",)), grain, tmp_path / "recorded")

    def counts(one: Run) -> list[str]:
        return [line for line in one.errors.splitlines() if line.startswith("kernels ")]

    assert counts(native) == counts(recorded) != []
    if grain == "kernel":
        assert int((recorded.trace.steps.kind == StepKind.PROFILED).sum()) == 3
        assert recorded.agreement.faults == [] and recorded.agreement.in_log > 0
    observed = record(device, Program("faults.py", ("observer",)), grain, tmp_path / "observed")
    assert (observed.exit_code, observed.output) == (0, "done\n")


def test_the_recorder_does_not_change_how_a_script_runs_out_of_memory(device: Path, tmp_path: Path) -> None:
    """benchmarks/gpu_programs.py compares the runs. The recordings have the 30 steps before the failed allocation."""
    commands = Commands(
        lambda words: [str(device), str(BIN / "python"), *words],
        lambda words, file, grain: [str(device), str(BIN / "trace"), "record", "-o", str(file), "--grain", grain, *words],
    )
    rows = Programs(tmp_path, tmp_path, commands, 240.0, {"no_memory": CASES["no_memory"]}).run()
    assert [(row.run, row.status, row.faults, row.steps) for row in rows] == [
        ("bare", "ok", [], 0),
        ("kernel", "ok", [], 30),
        ("phase", "ok", [], 30),
    ]


def _warnings(run: Run) -> list[str]:
    return sorted(line.split(": ", 1)[1] for line in run.errors.splitlines() if "Warning: " in line)


@pytest.mark.parametrize("grain", ["kernel", "phase"])
def test_the_recorder_does_not_change_the_warnings_of_data_parallel_replicas(
    device: Path, tmp_path: Path, grain: str
) -> None:
    """GIVEN two replicas on one device, in whose threads PyTorch sets no device THEN their first call of cuBLAS gives PyTorch's
    warning about a missing CUDA context."""
    program = Program("data_parallel.py", ("0,0",), steps=20)
    native, recorded = run(device, program, tmp_path / "native"), record(device, program, grain, tmp_path / "recorded")
    assert any("no current CUDA context" in line for line in _warnings(native))
    assert _warnings(recorded) == _warnings(native)

"""Tests the pytest plugin with test suites that run in separate processes, with and without a virtual GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replayer.recordings import phase_recording
from traces.format.trace_file import save
from traces.model.workload import InputTensor, WorkloadSignature

ROOT = Path(__file__).resolve().parents[2]

SUITE = '''
import pytest
import torch

if torch.cuda.is_available():
    at_import = torch.ones(2, device="cuda")

with_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

@pytest.mark.gpu("t4", memory="8GiB")
def test_other_gpu(gpu):
    assert torch.cuda.get_device_name() == "Tesla T4" and torch.cuda.mem_get_info()[1] == 8 << 30
    block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    gpu.assert_fits("1GiB")
    gpu.assert_fits("512MiB")

@pytest.mark.gpu("t5")
def test_unknown_gpu():
    pass

@with_gpu
def test_values():
    assert at_import.add(1).tolist() == [2, 2] and torch.cuda.device_count() == 2

@with_gpu
def test_swallows_a_refusal():
    try:
        at_import.__dlpack__()
    except Exception:
        pass

@with_gpu
def test_no_waits(gpu):
    at_import + 1
    gpu.assert_no_syncs()

@with_gpu
def test_waits(gpu):
    (at_import + 1).sum().item()  # this line waits
    gpu.assert_no_syncs()

@pytest.mark.gpu
def test_of_a_suite_that_has_its_own_marker():
    pass

@with_gpu
def test_catches_an_assert():
    raise torch.AcceleratorError("CUDA error: device-side assert triggered")

@with_gpu
def test_after_the_assert():
    assert torch.ones(2, device="cuda").sum() == 2
'''


def run(folder: Path, *words: str, suite: str = SUITE) -> list[str]:
    (folder / "test_suite.py").write_text(suite, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    unused\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=short", *words]
    if "trace_replay.pytest_plugin" not in _entry_points():
        command += ["-p", "trace_replay.pytest_plugin"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.stdout.splitlines()


def _entry_points() -> set[str]:
    from importlib.metadata import entry_points

    return {point.value for point in entry_points(group="pytest11")}


def outcomes(lines: list[str]) -> dict[str, str]:
    """Return the outcome of each test, by its name without "test_"."""
    said = [line.split() for line in lines if line.startswith(("PASSED ", "FAILED ", "SKIPPED ", "ERROR "))]
    return {words[1].partition("::test_")[2]: words[0] for words in said if "::" in words[1]}


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_the_plugin_runs_a_test_suite_on_a_virtual_gpu(words: tuple[str, ...], tmp_path: Path) -> None:
    lines = run(tmp_path, "--gpu", "a100", "--gpus", "2", *words)
    found = outcomes(lines)
    assert {name for name, outcome in found.items() if outcome == "PASSED"} == {
        "values",
        "no_waits",
        "of_a_suite_that_has_its_own_marker",
        "after_the_assert",
    }
    assert {name for name, outcome in found.items() if outcome == "FAILED"} == {"other_gpu", "waits", "catches_an_assert"}
    assert {name for name, outcome in found.items() if outcome == "ERROR"} == {"unknown_gpu"}
    text = "\n".join(lines)
    assert "virtual GPU: t5: no such recording, and unknown GPU: t5" in text
    assert "the test reserves 1.0 GiB of GPU memory at its peak, but the limit is 512MiB" in text
    line = next(number for number, line in enumerate(SUITE.splitlines(), 1) if "this line waits" in line)
    assert f"test_suite.py:{line} in test_waits" in text
    assert "Tensor.__dlpack__ is not emulated by the virtual GPU" in text
    summary = lines[next(number for number, line in enumerate(lines) if line.strip("= ") == "virtual GPU") :]
    assert any("__dlpack__" in line and "test_swallows_a_refusal" in line for line in summary)
    assert any("device-side assert" in line and "test_catches_an_assert" in line for line in summary)


def test_strict_mode_fails_tests_that_make_unsupported_calls(tmp_path: Path) -> None:
    lines = run(tmp_path, "--gpu", "a100", "--gpu-strict", "-k", "refusal")
    assert outcomes(lines) == {"swallows_a_refusal": "FAILED"}


MIXED_DEVICES = """
import torch

def add(a, b):
    return torch.nn.Identity()(a) + b

def test_mixed_devices():
    add(torch.ones(2, device="cuda"), torch.ones(2))
"""


def test_the_traceback_of_a_failed_test_ends_in_the_test(tmp_path: Path) -> None:
    lines = run(tmp_path, "--gpu", "a100", suite=MIXED_DEVICES)
    places = [line for line in lines if line.startswith(("test_suite.py:", "/", "../"))]
    assert [place.partition(":")[0] for place in places] == ["test_suite.py", "test_suite.py"]
    assert places[-1].startswith("test_suite.py:5: in add")
    assert any(line.startswith("E   RuntimeError: Expected all tensors to be on the same device") for line in lines)


FIXTURE_SUITE = '''
import pytest
import torch

@pytest.fixture
def swallows_in_its_teardown():
    yield
    try:
        torch.ones(1, device="cuda").__dlpack__()
    except Exception:
        pass

def test_with_the_fixture(swallows_in_its_teardown):
    pass

def test_without_the_fixture():
    pass
'''


@pytest.mark.parametrize(
    ("words", "ending"), [((), "2 passed, 1 skipped"), (("--gpu-strict",), "2 passed, 1 error")]
)
def test_unsupported_calls_in_the_teardown_of_a_fixture_are_reported(
    words: tuple[str, ...], ending: str, tmp_path: Path
) -> None:
    lines = run(tmp_path, "--gpu", "a100", *words, suite=FIXTURE_SUITE)
    assert ending in lines[-1]
    assert any("__dlpack__" in line and "test_with_the_fixture" in line for line in lines)


def test_without_the_option_gpu_the_plugin_does_nothing(tmp_path: Path) -> None:
    lines = run(tmp_path, "-k", "not other_gpu and not unknown_gpu")
    assert outcomes(lines) == {"of_a_suite_that_has_its_own_marker": "PASSED"}
    assert "virtual GPU" not in "\n".join(line for line in lines if line.startswith("="))


def test_a_test_is_compared_with_a_recording(tmp_path: Path) -> None:
    """The recorded steps take 66 ms. In the slower recording, they take 99 ms, so the test's steps are 33.3 % shorter."""
    phases = {"h2d": 2, "forward": 20, "loss": 1, "backward": 40, "optimizer": 3}
    save(phase_recording(phases), tmp_path / "recorded.msgpack")
    save(phase_recording({**phases, "backward": 73}), tmp_path / "slower.msgpack")
    for name, parameters in (("narrow", 36), ("wide", 72)):
        trace = phase_recording({**phases, "backward": 73})
        inputs = (InputTensor((4, 8), "float32"),)
        trace.workload = WorkloadSignature(parameters=parameters, parameter_bytes=4 * parameters, inputs=inputs)
        save(trace, tmp_path / f"{name}.msgpack")
    suite = """
import pytest
import torch

def train():
    model = torch.nn.Linear(8, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 8).cuda()), torch.ones(4, dtype=torch.long).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

@pytest.mark.gpu("recorded.msgpack", clock="recorded", values="recorded")
@pytest.mark.parametrize("other", ["recorded.msgpack", "slower.msgpack", "missing.msgpack"])
def test_time(gpu, other):
    train()
    gpu.assert_step_time(other, within=0.02)

@pytest.mark.gpu("recorded.msgpack", clock="recorded", values="recorded")
@pytest.mark.parametrize("other", ["narrow.msgpack", "wide.msgpack", "slower.msgpack"])
def test_program(gpu, other):
    train()
    gpu.assert_same_program(other)
"""
    lines = run(tmp_path, "-k", "test_time or test_program", suite=suite)
    assert outcomes(lines) == {
        "time[recorded.msgpack]": "PASSED",
        "time[slower.msgpack]": "FAILED",
        "time[missing.msgpack]": "FAILED",
        "program[narrow.msgpack]": "PASSED",
        "program[wide.msgpack]": "FAILED",
        "program[slower.msgpack]": "FAILED",
    }
    text = "\n".join(lines)
    # The traceback has no frames of trace-replay.
    assert "missing.msgpack: no such file" in text and str(ROOT / "traces") not in text
    assert "but 99.000 ms were recorded: the difference of -33.3% exceeds the limit of 2.0%" in text
    assert "the test does not run the recorded program:" in text
    assert "the traces do not show whether the test runs the recorded program:" in text

"""Tests each check of `trace doctor`, and how a failed check is reported."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tui.json_types import PAGE, faults
from tui.cli import run
from tui.commands import doctor
from tui.commands.doctor import Diagnosis, Health, KernelFacts


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the two slow checks, which start a Python process with torch, with fast fakes."""

    def one(name: str) -> Iterator[Diagnosis]:
        yield Diagnosis(name, Health.ok, "as made up")

    def torch() -> Iterator[Diagnosis]:
        return one("torch")

    def replay() -> Iterator[Diagnosis]:
        return one("a replay")

    monkeypatch.setattr(doctor, "_torch", torch)
    monkeypatch.setattr(doctor, "_replay", replay)
    monkeypatch.setattr(doctor, "_DEADLINES", 5)


def test_doctor_prints_one_line_for_each_check(quick: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert all(line.split()[0] in ("ok", "warn") for line in lines)
    found = " ".join(lines)
    for words in ("torch", "a replay", "waits", "locked memory", "free", "processors", "pandas"):
        assert words in found
    assert run(["doctor", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert faults(facts, PAGE.OUTPUTS["trace doctor --json"]) == []
    assert facts["works"] is True and {of["state"] for of in facts["findings"]} <= {"ok", "warn"}


class LateClock:
    """A clock whose waits end 1, 2, 3, ... us after their deadlines."""

    def __init__(self) -> None:
        self.time_ns = 0
        self.waits = 0

    def now_ns(self) -> int:
        return self.time_ns

    def wait_until(self, deadline_ns: int) -> None:
        assert deadline_ns >= self.time_ns + 1_000_000
        self.waits += 1
        self.time_ns = deadline_ns + 1_000 * self.waits


@pytest.mark.parametrize(("limit_ns", "state"), [(297_999, Health.warn), (298_000, Health.ok)])
def test_doctor_reports_the_99th_percentile_of_clock_lateness(
    monkeypatch: pytest.MonkeyPatch, limit_ns: int, state: Health
) -> None:
    """GIVEN 300 waits that end 1 to 300 us too late THEN the 99th percentile is 298 us."""
    monkeypatch.setattr(doctor, "WallClock", LateClock)
    monkeypatch.setattr(doctor, "LATE_NS", limit_ns)
    (found,) = doctor._clock()
    assert found.told == "99 % of 300 waits ended at most 298 µs too late" and found.state is state


@pytest.mark.program
def test_doctor_checks_torch_in_a_separate_process() -> None:
    found = {of.check: of for of in doctor._torch()}
    assert found["torch"].state is Health.ok and found["torch.profiler"].state is Health.ok
    assert "2." in found["torch"].told and "GPU" in found


@pytest.mark.parametrize(
    ("output", "told"),
    [("Traceback\nImportError: no libtorch.so", "cannot be imported: ImportError: no libtorch.so"), ("", "did not finish")],
)
def test_a_failed_check_of_doctor_is_reported_with_a_reason(monkeypatch: pytest.MonkeyPatch, output: str, told: str) -> None:
    def broken(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if not output:
            raise subprocess.TimeoutExpired(command, 120)
        return subprocess.CompletedProcess(command, 1, "", output)

    monkeypatch.setattr(subprocess, "run", broken)
    (torch,) = doctor._torch()
    (replay,) = doctor._replay()
    assert torch.state is replay.state is Health.fail and told in torch.told and torch.advice


@pytest.mark.parametrize(
    ("told", "stderr", "state", "words"),
    [
        ({"kernels": 2}, "", Health.ok, "trace record works here"),
        (
            {"kernels": 0},
            "WARNING:2026 1:1 init.cpp:1] CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)",
            Health.warn,
            "NVreg_Restrict",
        ),
        (
            {"kernels": 0},
            "WARNING:2026 1:1 init.cpp:1] CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
            Health.warn,
            "without nsys",
        ),
        ({"kernels": 0}, "INFO: see CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", Health.warn, "no device work"),
        ({"gpu_error": "CUDA error: unknown"}, "", Health.warn, "failed to run a test kernel: CUDA error: unknown"),
    ],
)
def test_doctor_reports_whether_kernels_can_be_recorded(told: KernelFacts, stderr: str, state: Health, words: str) -> None:
    found = doctor._kernels(told, stderr)
    assert found.state is state and words in f"{found.told}; {found.advice}"


def test_a_locked_memory_limit_is_reported_if_it_is_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64 << 10, 64 << 10))
    monkeypatch.setattr(doctor, "_may_lock_anything", lambda: False)
    (found,) = doctor._locked_memory()
    assert found.advice.endswith("`ulimit -l unlimited`, docker --ulimit memlock=-1")
    assert (found.state, found.told) == (Health.warn, "64.0 KiB at most") and "ulimit -l" in found.advice


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for free_bytes, state in ((2 << 30, Health.ok), ((2 << 30) - 1, Health.warn)):
        monkeypatch.setattr("shutil.disk_usage", lambda folder, free_bytes=free_bytes: SimpleNamespace(free=free_bytes))
        assert {of.state for of in doctor._disk()} == {state}


def test_doctor_counts_processors_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert doctor.usable_cores() == os.cpu_count()

"""Tests profiles in which the host runs ahead of the GPU, from the profiler's JSON to the exit code of `trace diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tui.cli import run

KERNELS_PER_STEP, STEPS, HOST_US = 4, 4, 2_000
GATE = '[budget]\nstep_time_change = "3 %"\ngpu_busy_change = "5 %"\nsame_program = true\n'


def profile(kernel_us: int, *, waits: bool = False) -> dict[str, Any]:
    """Return a profile with steps of 2 ms on the host. Each step launches four kernels and waits for none of them.

    With `waits`, each step takes 250 ms and begins when the GPU has finished all work.
    """
    events: list[dict[str, Any]] = []

    def event(category: str, name: str, start_us: int, lasts_us: int, args: dict[str, Any], tid: int = 100) -> None:
        place = {"pid": 0 if tid == 7 else 100, "tid": tid}
        events.append({"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": lasts_us, "args": args, **place})

    done_us, step_us = 3_000, 250_000 if waits else HOST_US
    for number in range(STEPS):
        begin_us = 1_000 + number * step_us
        event("user_annotation", f"ProfilerStep#{number + 10}", begin_us, step_us - 10, {})
        for place in range(KERNELS_PER_STEP):
            at_us, correlation = begin_us + 100 + 300 * place, number * KERNELS_PER_STEP + place + 1
            event("cpu_op", "aten::mm", at_us, 100, {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]})
            event("cuda_runtime", "cudaLaunchKernel", at_us + 20, 5, {"correlation": correlation})
            done_us = max(done_us, at_us + 30)
            event("kernel", "gemm", done_us, kernel_us, {"device": 0, "stream": 7, "correlation": correlation}, tid=7)
            done_us += kernel_us
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a GPU"}], "traceEvents": events}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, facts in (("a", profile(5_000)), ("b", profile(50_000)), ("c", profile(50_000, waits=True))):
        Path(f"{name}.json").write_text(json.dumps(facts))
        assert run(["import", f"{name}.json", "-o", f"{name}.msgpack", "-q"]) == 0
    Path("gate.toml").write_text(GATE)
    return tmp_path


def diffed(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = run(["diff", *words.split()])
    return code, capsys.readouterr().out


def test_diff_fails_if_kernels_take_ten_times_as_long(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = diffed("a.msgpack b.msgpack", capsys)
    assert code == 1
    assert said.startswith("FAIL: step time differs by +900.0 %, GPU time by +900.0 %; limit 5.0 %.\n")
    assert "Bottleneck: the GPU (the host runs ahead) in A, the GPU (the host runs ahead) in B." in " ".join(said.split())
    code, said = diffed("a.msgpack b.msgpack --gate gate.toml", capsys)
    assert code == 1 and "gate FAILED: step_time_change +900.0 %" in said


def test_the_json_of_diff_contains_step_time_and_gpu_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(diffed("a.msgpack b.msgpack --json", capsys)[1])
    medians = {key: (facts[key]["recorded_median_ns"], facts[key]["replayed_median_ns"])
               for key in ("steps", "pace", "host_pace", "device_pace", "gpu_busy", "gpu_time")}  # fmt: skip
    on_device = (20_000_000, 200_000_000)
    assert medians.pop("host_pace") == (2_000_000, 2_000_000)
    assert set(medians.values()) == {on_device}
    assert facts["judged_figures"] == ["steps", "gpu_busy"] and facts["within_tolerance"] is False


def test_diff_judges_step_time_and_gpu_time_separately(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B and C have the same kernels, but C's host takes 250 ms per step. A and C differ in both."""
    code, said = diffed("b.msgpack c.msgpack", capsys)
    assert code == 1 and said.startswith("FAIL: step time differs by +25.0 %, GPU time by 0.0 %; limit 5.0 %.")
    # WHEN the tolerance is larger than the difference of the step times THEN the traces pass
    code, said = diffed("b.msgpack c.msgpack --tolerance 0.3", capsys)
    assert code == 0 and said.startswith("PASS: step time differs by +25.0 %, GPU time by 0.0 %; limit 30.0 %.")
    # WHEN the steps take the same time, but the GPU works only a tenth of the time THEN the traces fail
    Path("d.json").write_text(json.dumps(profile(5_000, waits=True)))
    assert run(["import", "d.json", "-o", "d.msgpack", "-q"]) == 0
    code, said = diffed("c.msgpack d.msgpack", capsys)
    assert code == 1 and said.startswith("FAIL: GPU time differs by -90.0 %, step time by 0.0 %; limit 5.0 %.")


def test_info_names_the_bottleneck_and_warns_that_the_gpu_falls_behind(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for name in "ac":
        capsys.readouterr()
        assert run(["info", f"{name}.msgpack"]) == 0
        said[name] = " ".join(capsys.readouterr().out.split())
    assert "step 20.0 ms (median of 4 steps" in said["a"]
    assert said["a"].startswith("The GPU limits the speed: the host needs 2.0 ms of a 20.0 ms step and runs ahead.")
    assert "The GPU falls 18.0 ms further behind the host in each step" in said["a"]
    assert "step 250.0 ms" in said["c"]
    assert said["c"].startswith(
        "The GPU is busy 80.0 % of the time; otherwise, it mostly waits for the host. A step of 250.0 ms could be up to"
    )
    assert "falls" not in said["c"]


def test_brief_and_detailed_info_show_the_same_idle_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["info", "a.msgpack"]) == 0 and run(["info", "a.msgpack", "--details"]) == 0
    said = capsys.readouterr().out
    # After the first step, the GPU works without a gap. The first step began without queued work.
    assert said.count("GPU idle  0.0 %") == 2 and "80.0 ms  0.0 %" in said

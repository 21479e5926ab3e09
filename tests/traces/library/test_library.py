"""Tests that each library entry can be loaded, names its source, and is found by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published.p100_no_cudnn import build
from benchmarks.published.p100x2_no_cudnn import build as build_x2
from tests.traces.sound_traces import differences
from traces.comparison.compare import compare
from traces.format.trace_file import load
from traces.library import entries, find
from traces.model.trace import Origin, StepKind, Trace, TraceLibraryError
from traces.model.workload import InputTensor, Sameness, WorkloadSignature, compare_workloads


def test_the_library_index_lists_exactly_the_files_in_its_folder() -> None:
    folder = entries()[0].path.parent
    assert sorted(entry.path.name for entry in entries()) == sorted(path.name for path in folder.glob("*.msgpack"))

    for entry in entries():
        trace = load(entry.path)
        assert (trace.grain, trace.devices[0].name) == (entry.grain, entry.device)
        assert trace.provenance["study"] in entry.source and not trace.problems


def test_library_entries_are_found_by_name_and_files_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.msgpack").write_bytes(b"")
    (tmp_path / "p100-no-cudnn").mkdir()
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)

    assert find("mine.msgpack") == Path("mine.msgpack")
    # A library entry is preferred to a folder of the same name.
    assert find("p100-no-cudnn") == find("p100-no-cudnn.msgpack") == entries()[0].path
    # The folder is found, and reading it gives an error later.
    assert find("runs") == Path("runs")
    (tmp_path / "p100-no-cudnn.msgpack").write_bytes(b"")
    assert find("p100-no-cudnn.msgpack") == Path("p100-no-cudnn.msgpack")

    with pytest.raises(TraceLibraryError, match=r"k80 is a GPU .*, such as k80/resnet50, .* --gpu k80`$"):
        find("k80")
    for name in ("runs/p100", "../p100", ""):
        found = r"no such file, and no such recording in the library, which has: p100-no-cudnn, p100x2-no-cudnn$"
        with pytest.raises(TraceLibraryError, match=found):
            find(name)


@pytest.fixture(scope="module")
def p100() -> Trace:
    return load(find("p100-no-cudnn"))


def test_the_p100_recording_equals_the_output_of_its_build_script(p100: Trace) -> None:
    assert differences(p100, build()) == []


def test_the_p100_recording_has_the_published_times(p100: Trace) -> None:
    ms = {
        (int(step), p100.strings[name]): duration / 1e6
        for step, name, duration in zip(p100.phases.step, p100.phases.name, p100.phases.duration_ns, strict=True)
    }

    assert p100.steps.kind.tolist() == [StepKind.WARMUP, StepKind.STEADY]
    assert (p100.steps.duration_ns / 1e6).tolist() == [1213.0, 759.7]
    steady = {name: duration for (step, name), duration in ms.items() if step == 1}
    assert steady == {"h2d": 6.5, "forward": 254.7, "loss": 0.3, "backward": 495.1, "optimizer": 3.1}
    warmup = {name: duration for (step, name), duration in ms.items() if step == 0}
    assert warmup == steady | {"forward": 708.0}
    assert set(p100.phases.origin) == {Origin.PUBLISHED}


def test_both_p100_recordings_have_the_workload_of_the_published_study(p100: Trace, p100x2: Trace) -> None:
    assert p100.workload is not None and p100x2.workload is not None
    assert compare_workloads(p100.workload, p100x2.workload).sameness is Sameness.OTHER_BATCH_SIZE
    own = WorkloadSignature(
        parameters=11_689_512, modules={"Net": 1}, inputs=(InputTensor((128, 3, 224, 224), "float32"),), optimizer="Adam"
    )
    assert compare_workloads(p100.workload, own).sameness is Sameness.SAME_PROGRAM
    assert compare_workloads(p100.workload, replace(own, parameters=25_557_032)).sameness is Sameness.OTHER_PROGRAM


def test_in_the_p100_recording_phases_fill_the_steps_on_host_and_gpu(p100: Trace) -> None:
    phases, steps = p100.phases, p100.steps

    assert (phases.start_ns[1:] == phases.end_ns[:-1]).all()
    for step in range(len(steps)):
        assert phases.start_ns[phases.step == step].min() == steps.start_ns[step]
        assert phases.end_ns[phases.step == step].max() == steps.end_ns[step]
    assert (phases.device_start_ns == phases.start_ns).all() and (phases.device_end_ns == phases.end_ns).all()
    assert set(phases.device) == {0}


@pytest.fixture(scope="module")
def p100x2() -> Trace:
    return load(find("p100x2-no-cudnn"))


def test_the_p100x2_recording_equals_the_output_of_its_build_script(p100x2: Trace) -> None:
    assert differences(p100x2, build_x2()) == []


def test_the_p100x2_recording_has_the_published_step_times(p100x2: Trace) -> None:
    """Except for copies, the step takes the published time. Each phase is within 0.6 % (or 0.1 ms) of its published median."""
    assert p100x2.steps.kind.tolist() == [StepKind.WARMUP, StepKind.STEADY]
    assert (p100x2.steps.duration_ns / 1e6).tolist() == [(3466 + 3727) / 2, 776.0]
    rows = np.flatnonzero(p100x2.phases.step == 1)
    steady = {p100x2.strings[p100x2.phases.name[row]]: p100x2.phases.duration_ns[row] / 1e6 for row in rows}
    assert sum(steady.values()) - steady["h2d"] == pytest.approx(775.7)
    published = {"h2d": 0.3, "forward": 270.1, "loss": 0.5, "backward": 503.7, "optimizer": 5.5}
    assert steady == {name: pytest.approx(ms, rel=0.006, abs=0.1) for name, ms in published.items()}
    assert [(device.index, device.name) for device in p100x2.devices] == [(i, "Tesla P100-PCIE-16GB") for i in (0, 1)]


def test_the_stages_of_the_p100x2_recording_lie_within_their_phases(p100x2: Trace) -> None:
    parts, phases = p100x2.parts, p100x2.phases
    assert (parts.start_ns >= phases.start_ns[parts.phase]).all() and (parts.end_ns <= phases.end_ns[parts.phase]).all()
    assert (parts.device_start_ns >= phases.device_start_ns[parts.phase]).all()
    assert (parts.device_end_ns <= phases.device_end_ns[parts.phase]).all()
    assert (parts.device_start_ns >= parts.start_ns).all()  # the device begins a stage after the host
    text, pairs = p100x2.strings, zip(parts.name, phases.name[parts.phase], strict=True)
    in_phase = {text[part]: text[phase] for part, phase in pairs}
    of_forward = dict.fromkeys(("scatter", "replicate", "parallel_apply", "gather"), "forward")
    assert in_phase == of_forward | dict.fromkeys(("gather_backward", "broadcast_backward"), "backward")


def test_the_p100_recordings_differ_by_the_published_times_of_each_stage(p100: Trace, p100x2: Trace) -> None:
    facts = compare(p100, p100x2).to_json()
    phases = {name: (of["recorded_median_ns"], of["replayed_median_ns"]) for name, of in facts["phases"].items()}
    more_ns = sum(b - a for name, (a, b) in phases.items() if name != "h2d")
    assert 0.9 * 23.4e6 < more_ns < 1.1 * 23.4e6
    steps = facts["steps"]
    assert 2 * steps["recorded_median_ns"] / steps["replayed_median_ns"] == pytest.approx(1.956, rel=0.01)
    ms = {name: (of["replayed_median_ns"] / 1e6, of["device_replayed_median_ns"] / 1e6) for name, of in facts["parts"].items()}
    assert ms == {
        "scatter": (6.7, 6.7),
        "replicate": (6.2, 6.2),
        "parallel_apply (cuda:0)": (247.3, 255.5),
        "parallel_apply (cuda:1)": (247.3, 255.5),
        "gather": (8.5, 0.3),
        "gather_backward": (2.2, 2.2),
        "broadcast_backward": (5.7, 5.7),
    }
    assert list(ms) == ["scatter", "replicate", "parallel_apply (cuda:0)", "parallel_apply (cuda:1)", "gather",
                        "gather_backward", "broadcast_backward"]  # fmt: skip
    assert all(of["recorded_median_ns"] is of["error"] is of["device_error"] is None for of in facts["parts"].values())
    assert "parts" not in compare(p100, p100).to_json()
    itself = compare(p100x2, p100x2).to_json()["parts"]
    assert {of["error"] for of in itself.values()} == {of["device_error"] for of in itself.values()} == {0.0}

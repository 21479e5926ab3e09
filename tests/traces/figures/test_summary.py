"""Tests the figures that `trace info` shows, also as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.traces.handmade import START_NS, US, data_parallel, phase_grained, training
from traces.figures.phase_medians import PhaseMedians
from traces.figures.summary import outline, summarize
from traces.kineto import read_kineto
from traces.model.trace import Device, Ending, StepKind, Trace
from tui.text.info import info_text


def test_the_json_has_the_documented_keys() -> None:
    trace = training(steps=2)
    trace.problems = {"kernel-without-launch": 3}
    trace.lacks = ["call stacks"]
    trace.steps.kind[0] = StepKind.WARMUP
    summary = json.loads(json.dumps(summarize(trace).to_json()))
    assert (summary["version"], summary["grain"], summary["ranks"]) == (1, "kernel", [0])
    assert summary["devices"][0]["name"] == "Tesla V100-DGXS-32GB"
    assert summary["devices"][0]["total_memory_bytes"] == 32 << 30
    assert summary["counts"] == {"kernels": 8, "copies": 2, "host_ops": 16, "memory_events": 3, "steps": 2}
    assert summary["gpu_busy_ns"] == 100 * US
    assert summary["steps"][0]["start_ns"] == START_NS and summary["steps"][0]["duration_ns"] == 100 * US
    assert [step["kind"] for step in summary["steps"]] == ["warmup", "steady"]
    assert summary["problems"] == {"kernel-without-launch": 3} and summary["lacks"] == ["call stacks"]
    assert (summary["run"]["source"], summary["run"]["clock"], summary["provenance"]) == ("hand", "unix", {})


@pytest.mark.parametrize("trace", [training(steps=2), data_parallel(), phase_grained()], ids=["kernels", "two GPUs", "phases"])
def test_the_short_summary_shows_the_same_figures_as_the_full_summary(trace: Trace) -> None:
    short, whole = outline(trace), summarize(trace)

    assert (short.ranks, short.devices, short.counts, short.run) == (whole.ranks, whole.devices, whole.counts, whole.run)
    assert (short.step_median_ns, short.busy_shares) == (whole.step_median_ns, whole.busy_shares)
    assert (short.memory, short.problems) == (whole.memory, whole.problems)


def test_the_summary_of_a_training_recording_has_the_expected_figures() -> None:
    summary = summarize(training(steps=2))
    assert summary.compute_side_median_ns == 80 * US
    assert summary.pace is not None and (summary.pace.pace_ns, summary.pace.gpu_time_ns) == (100 * US, 50 * US)
    assert summary.bottleneck is not None and summary.bottleneck.limit == "data"
    assert [step.device_interval_ns for step in summary.steps] == [97 * US, 100 * US]
    assert summary.phases["forward"] == PhaseMedians(median_ns=20 * US, device_median_ns=27 * US, busy_median_ns=10 * US)
    assert summary.kernels[0].count == 2
    assert {row.name for row in summary.calls} >= {"aten::conv2d"}
    assert {row.name for row in summary.ops} >= {"aten::cudnn_convolution"}
    assert summary.memory["cuda:0"].peak_allocated_bytes == 3 << 20
    # The GPU works for 100 us between the start of the first step and 97 us after the start of the second step.
    assert summary.gpus["cuda:0"].idle_share == 0.5
    assert summary.gpus["cuda:0"].idle_share == pytest.approx(1 - summary.busy_shares["cuda:0"])
    assert summary.gpus["cuda:0"].streams == {7: 100 * US}


def test_empty_traces_and_traces_with_only_phase_times_can_be_summarized() -> None:
    empty = summarize(Trace())
    assert empty.gpu_busy_ns == 0 and empty.step_median_ns is None and empty.steps == []
    phases = summarize(phase_grained())
    assert phases.grain == "phase" and phases.counts.kernels == 0
    assert phases.phases["backward"].device_median_ns == 27 * US


def test_the_summary_has_the_host_side_figures_of_the_recorder() -> None:
    trace = data_parallel(steps=6)
    trace.batches.duration_ns[2] = 8 * US  # the third step waits longer, which does not change the medians
    summary = json.loads(json.dumps(summarize(trace).to_json()))
    assert {kind: told["count"] for kind, told in summary["step_kinds"].items()} == {
        "warmup": 1,
        "steady": 3,
        "evaluation": 1,
        "profiled": 1,
    }
    assert summary["step_kinds"]["steady"]["median_ns"] == 100 * US
    pipeline = summary["input_pipeline"]
    assert (pipeline["waits"], pipeline["wait_median_ns"], pipeline["wait_per_step_ns"]) == (6, 2 * US, 2 * US)
    assert (pipeline["wait_total_ns"], pipeline["batch_bytes"]) == (18 * US, 50_000)
    assert (pipeline["pins"], pipeline["pin_median_ns"], pipeline["pin_bytes_per_s"]) == (6, 5 * US, 10_000_000_000)
    assert pipeline["loaders"][0]["workers"] == 4
    assert summary["collectives"] == [
        {
            "name": "all_reduce",
            "backend": "nccl",
            "count": 6,
            "bytes": 6 * 4096,
            "timed": 6,
            "bounded": 0,
            "duration_ns": 60 * US,
            "median_ns": 10 * US,
        }
    ]
    parts = [(part["name"], part["device"], part["median_ns"], part["device_median_ns"]) for part in summary["parts"]]
    assert parts == [
        ("scatter", "cuda:0", 2 * US, 3 * US),
        ("replicate", "cuda:0", 2 * US, 3 * US),
        ("parallel_apply", "cuda:0", 11 * US, 12 * US),
        ("parallel_apply", "cuda:1", 12 * US, 14 * US),
        ("gather", "cuda:0", 2 * US, 3 * US),
    ]
    assert summary["recorder"]["overhead_share"] == 0.015 and summary["clean"] is None
    empty = summarize(training())
    assert empty.input_pipeline is None and (empty.parts, empty.collectives) == ([], [])


def test_collective_times_include_only_collectives_with_an_observed_end() -> None:
    trace = data_parallel(steps=6)
    calls = trace.collectives
    calls.duration_ns[:] = [10 * US, 20 * US, 30 * US, 400 * US, 7 * US, 0]
    calls.ending[:] = [Ending.SEEN] * 3 + [Ending.BY] + [Ending.UNSEEN] * 2
    [row] = summarize(trace).collectives
    assert (row.count, row.timed, row.bounded) == (6, 3, 1)
    assert (row.duration_ns, row.median_ns) == (460 * US, 20 * US)
    communication = summarize(trace).communication
    assert communication is not None
    assert sum(row.duration_ns for row in communication.operations) == 460 * US
    assert "≤ 460.0 µs  20.0 µs      3" in info_text(summarize(trace), "t")
    calls.ending[:3] = Ending.UNSEEN
    [row] = summarize(trace).collectives
    assert (row.timed, row.duration_ns, row.median_ns) == (0, 400 * US, 400 * US)
    assert "≤ 400.0 µs  ≤ 400.0 µs      0" in info_text(summarize(trace), "t")
    calls.ending[:] = Ending.UNSEEN
    assert summarize(trace).collectives[0].median_ns is None
    assert "-       -      0" in info_text(summarize(trace), "t")


def _indexed(shared_traces: Path) -> dict[str, tuple[int, int, int, float]]:
    """Return a row of INDEX.md for each recording of one file: the numbers of kernels, copies and memory events, and the busy
    time in ms."""
    rows = {}
    for line in (shared_traces / "INDEX.md").read_text().splitlines():
        if (named := re.match(r"\| `(\w+)` ", line)) and len(cells := line.split("|")) > 11:
            rows[named[1]] = (int(cells[6]), int(cells[7]), int(cells[8]), float(cells[10]))
    return rows


@pytest.mark.parametrize("name", ["v100_resnet50_workers0", "mi300x_resnet18_no_pool", "gpu_graph_vllm_decode"])
def test_the_summary_agrees_with_the_index_of_recordings(shared_traces: Path, name: str) -> None:
    kernels, copies, memory_events, busy_ms = _indexed(shared_traces)[name]
    summary = summarize(read_kineto(shared_traces / f"{name}.json.gz"))
    counts = summary.counts
    assert (counts.kernels, counts.copies, counts.memory_events) == (kernels, copies, memory_events)
    assert round(summary.gpu_busy_ns / 1e6, 3) == busy_ms


def test_the_summary_mentions_a_gpu_without_a_name() -> None:
    named, unnamed = Device(0, 0, "Tesla T4"), Device(0, 1, "")
    assert summarize(Trace(devices=[named, unnamed])).gpu_names == "Tesla T4, an unnamed GPU"
    assert summarize(Trace(devices=[named, named])).gpu_names == "Tesla T4" and summarize(Trace()).gpu_names == "no GPU"


def test_a_host_only_recording_lists_the_ops_with_the_most_self_time(tmp_path: Path) -> None:
    """GIVEN a CPU profile WHEN an op of 100 us calls an op of 70 us THEN the summary lists the inner op first."""
    of_cpu = [("aten::conv2d", 0, 100), ("aten::mkldnn_convolution", 20, 70), ("aten::relu", 110, 20)]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": lasts, "pid": 1, "tid": 1, "args": {}}
        for name, start, lasts in of_cpu
    ]
    file = tmp_path / "cpu.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    summary = summarize(read_kineto(file))
    found = [(row.name, row.self_ns) for row in summary.host_ops]
    assert found == [("aten::mkldnn_convolution", 70 * US), ("aten::conv2d", 30 * US), ("aten::relu", 20 * US)]
    said = " ".join(info_text(summary, "cpu.msgpack", details=False).split())
    assert "host ops 58.3 % aten::mkldnn_convolution 25.0 % aten::conv2d 16.7 % aten::relu" in said


def test_a_recording_with_gpu_memory_but_no_kernels_is_not_called_host_only(tmp_path: Path) -> None:
    """GIVEN memory events of cuda:0 and no kernels WHEN the recording is summarized THEN the text advises recording kernels."""
    place = {"pid": 1, "tid": 1}
    args = {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Addr": 4096, "Total Allocated": 512, "Total Reserved": 1024}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "ts": 1, "dur": 9, "args": {}, **place},
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "ts": 2, "args": args, **place},
    ]
    file = tmp_path / "memory.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    said = info_text(summarize(read_kineto(file)), "memory.msgpack", details=False)
    assert "kernels were not recorded" in said and "Record with ProfilerActivity.CUDA." in said


def test_the_repr_of_a_summary_shows_gpu_busy_time_only_for_traces_with_kernels() -> None:
    """GIVEN a trace of 4 steps of 100 us, each with 5 kernels of 10 us THEN the repr shows the GPU busy time. The repr of a
    trace without kernels shows no busy time."""
    assert repr(summarize(training())).splitlines()[-1] == "  GPU busy 0.200 ms of 0.400 ms"
    assert "GPU busy" not in repr(summarize(phase_grained()))

"""Tests that a Chrome export follows the rules of trace viewers, and that an import of the export gives the same trace."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.handmade import START_NS, US, data_parallel, phase_grained, replay_of, training
from traces.chrome.export import export_chrome
from traces.chrome.strict_nesting import after_work, nested_ends
from traces.figures.measure import busy_ns, phase_times
from traces.figures.summary import summarize
from traces.kineto import read_kineto
from traces.model.intervals import Intervals
from traces.model.trace import Device, DeviceKind, DeviceSpans, Ending, HostKind, HostSpans, Steps, Thread, Trace


def _export(trace: Trace, folder: Path) -> dict[str, Any]:
    (path,) = export_chrome(trace, folder / "trace.json")
    document: dict[str, Any] = json.loads(path.read_bytes(), parse_constant=_refuse)
    return document


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _crossings(events: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Return pairs of events on the same track that overlap only in part."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start_ns = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((start_ns, -round(event["dur"] * 1000), event["name"]))
    found = []
    for spans in tracks.values():
        around: list[tuple[int, str]] = []
        for start_ns, minus_ns, name in sorted(spans):
            while around and around[-1][0] <= start_ns:
                around.pop()
            if around and around[-1][0] < start_ns - minus_ns:
                found.append((around[-1][1], name))
            around.append((start_ns - minus_ns, name))
    return found


def _like(trace: Trace, other: Trace) -> None:
    """Check that both traces have the same counts, times, steps, phases and launches."""
    for key in ("counts", "gpu_busy_ns", "gpus", "phases", "kernels", "ops", "calls", "memory"):
        assert getattr(summarize(trace), key) == getattr(summarize(other), key), key
    assert np.array_equal(trace.steps.start_ns, other.steps.start_ns)
    assert np.array_equal(trace.steps.duration_ns, other.steps.duration_ns)
    ours, theirs = phase_times(trace), phase_times(other)
    assert all(np.array_equal(ours[name].host_ns, theirs[name].host_ns) for name in ours)
    assert np.array_equal(trace.device.start_ns, other.device.start_ns)
    assert np.array_equal(trace.device.launch, other.device.launch)


def test_exported_events_have_the_format_of_torch_profiler(tmp_path: Path) -> None:
    document = _export(training(steps=1), tmp_path)
    events = document["traceEvents"]
    assert document["schemaVersion"] == 1
    assert document["distributedInfo"] == {"rank": 0, "world_size": 1}
    assert document["baseTimeNanoseconds"] == START_NS // 10**9 * 10**9
    device = {"computeMajor": 7, "id": 0, "name": "Tesla V100-DGXS-32GB", "totalGlobalMem": 32 << 30}
    assert document["deviceProperties"] == [device]
    (kernel,) = [e for e in events if e["name"] == "volta_sgemm_nn"]
    (op,) = [e for e in events if e["name"] == "aten::cudnn_convolution"]
    launch = next(e for e in events if e.get("args", {}).get("correlation") == kernel["args"]["correlation"] and e != kernel)
    assert (kernel["cat"], kernel["pid"], kernel["tid"], kernel["dur"]) == ("kernel", 0, 7, 10)
    assert kernel["ts"] == 160.456
    assert kernel["args"]["External id"] == op["args"]["External id"] == launch["args"]["External id"]
    assert launch["cat"] == "cuda_runtime" and launch["pid"] == op["pid"] != kernel["pid"]
    assert op["args"]["Input Dims"] == [[32, 3, 8, 8], [4, 3, 3, 3]] and op["args"]["Input type"] == ["float"]
    (copy,) = [e for e in events if e.get("cat") == "gpu_memcpy"]
    assert copy["args"]["bytes"] == 4096 and copy["args"]["stream"] == 7 and copy["args"]["device"] == 0
    flow = {e["ph"]: e for e in events if e.get("cat") == "ac2g" and e["id"] == kernel["args"]["correlation"]}
    assert (flow["s"]["ts"], flow["s"]["tid"]) == (launch["ts"], launch["tid"])
    assert (flow["f"]["ts"], flow["f"]["pid"], flow["f"]["bp"]) == (kernel["ts"], 0, "e")
    memory = [e["args"] for e in events if e["name"] == "[memory]"]
    assert memory[0] == {
        "Device Type": 1,
        "Device Id": 0,
        "Bytes": 1 << 20,
        "Addr": 4096,
        "Total Allocated": 3 << 20,
        "Total Reserved": 4 << 20,
    }
    assert memory[2] == {"Device Type": 0, "Device Id": -1, "Bytes": 64, "Addr": 8192}
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {
        "main",
        "autograd",
        "phases",
        "stream 7",
    }


def test_exporting_and_importing_a_trace_gives_the_same_trace(tmp_path: Path) -> None:
    trace = training(steps=3, jitter_us=(0, 3))
    (path,) = export_chrome(trace, tmp_path / "x.json.gz")
    back = read_kineto(path)
    assert back.run_of(0).clock == "unix" and not back.problems
    assert summarize(back).counts == summarize(trace).counts
    assert busy_ns(back) == busy_ns(trace)
    assert back.steps.duration_ns.tolist() == trace.steps.duration_ns.tolist()
    assert back.steps.number.tolist() == trace.steps.number.tolist()
    assert summarize(back).ops == summarize(trace).ops


def test_an_exported_replay_links_kernels_to_their_ops(tmp_path: Path) -> None:
    replay = replay_of(training())
    events = _export(replay, tmp_path)["traceEvents"]
    assert len({e["args"]["correlation"] for e in events if e.get("cat") == "cpu_op" and "correlation" in e["args"]}) == 40
    assert sum(e.get("ph") == "f" for e in events) == 40
    assert not _crossings(events)


def test_an_exported_trace_with_only_phase_times_contains_host_and_gpu_phases(tmp_path: Path) -> None:
    events = _export(phase_grained(steps=2), tmp_path)["traceEvents"]
    assert [e["name"] for e in events if e.get("cat") == "user_annotation"] == ["ProfilerStep#5", "ProfilerStep#6"]
    rows = [(e["name"], e["pid"]) for e in events if e.get("cat") == "Trace"]
    assert sum(pid == 0 for _, pid in rows) == 10 and sum(pid != 0 for _, pid in rows) == 12
    assert not _crossings([e for e in events if e["pid"] != 0])


def test_stages_are_exported_to_their_threads_or_to_separate_tracks(tmp_path: Path) -> None:
    trace = data_parallel(steps=4)
    trace.collectives.ending[1:3] = [Ending.BY, Ending.UNSEEN]
    events = _export(trace, tmp_path)["traceEvents"]
    assert not _crossings(events) and min(e["ts"] for e in events if e["ph"] == "X") >= 0
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], named[event["pid"], event["tid"]]].append(event)

    host = 10_000
    replicas = [e for e in events if e.get("cat") == "user_annotation" and "parallel_apply" in e["name"]]
    assert [e["name"] for e in replicas] == ["DataParallel.parallel_apply#0", "DataParallel.parallel_apply#1"] * 4
    assert {e["tid"] for e in replicas} == {301, 302} and {e["dur"] for e in replicas} == {11, 12}
    assert [e["name"] for e in tracks[1, "parts"]] == ["DataParallel.parallel_apply"] * 4
    assert {e["dur"] for e in tracks[1, "parts"]} == {14}
    assert [(e["name"], e["dur"], e["args"]) for e in tracks[host, "wait for batch (loader)"]] == [
        ("wait for batch", 2, {"loader": 0, "bytes": 50_000})
    ] * 4
    assert [e["dur"] for e in tracks[host, "pin batch (loader)"]] == [5] * 4
    reduced = tracks[host, "collectives"][0]
    assert (reduced["name"], reduced["dur"], reduced["cat"]) == ("all_reduce", 10, "Trace")
    assert reduced["args"] == {"backend": "nccl", "group": "", "dtype": "float32", "bytes": 4096}
    assert [event["args"].get("duration") for event in tracks[host, "collectives"]] == [None, "at most", "not measured", None]

    # An import gives the stages back.
    back = read_kineto(tmp_path / "trace.json")
    for column in ("start_ns", "duration_ns"):
        assert getattr(back.parts, column).tolist() == getattr(trace.parts, column).tolist()
    assert [back.threads[i].tid for i in back.parts.thread] == [trace.threads[i].tid for i in trace.parts.thread]
    assert [back.strings[i] for i in back.parts.name] == [trace.strings[i] for i in trace.parts.name]


def test_an_empty_trace_is_exported_as_valid_json(tmp_path: Path) -> None:
    assert [e["ph"] for e in _export(Trace(), tmp_path)["traceEvents"]] == ["M"] * 3


def test_each_rank_is_exported_to_a_separate_file(tmp_path: Path) -> None:
    trace = training(steps=1)
    trace.devices.append(Device(1, 0, "GPU"))
    trace.threads.append(Thread(1, 100, "main", "main"))
    trace.steps = Steps.of(rank=[0, 1], number=[5, 5], start_ns=[START_NS] * 2, duration_ns=[100 * US] * 2)
    paths = export_chrome(trace, tmp_path / "run.json.gz")
    assert [path.name for path in paths] == ["run_rank0.json.gz", "run_rank1.json.gz"]
    second = json.loads(gzip.decompress(paths[1].read_bytes()))
    assert second["distributedInfo"] == {"rank": 1, "world_size": 2}
    assert not [e for e in second["traceEvents"] if e.get("cat") == "kernel"]
    folder = tmp_path / "ranks"
    folder.mkdir()
    assert [path.name for path in export_chrome(trace, folder)] == ["rank0.json.gz", "rank1.json.gz"]
    assert read_kineto(folder).ranks == [0, 1]


def test_two_threads_with_the_same_id_are_exported_to_separate_tracks(tmp_path: Path) -> None:
    trace = training(steps=1)
    trace.threads[1] = Thread(0, 100, "autograd", "backward")
    assert not _crossings(_export(trace, tmp_path)["traceEvents"])


def test_a_failed_export_does_not_change_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    target.write_text("what was there before")
    trace = training(steps=1)
    trace.provenance["set"] = {1}  # a set is no JSON value
    with pytest.raises(TypeError):
        export_chrome(trace, target)
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert target.read_text() == "what was there before"


def test_saving_the_same_trace_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (export_chrome(training(), tmp_path / name)[0] for name in ("a.json.gz", "b.json.gz"))
    assert first.read_bytes() == second.read_bytes()


def test_synchronizations_are_exported_to_a_separate_track(tmp_path: Path) -> None:
    # GIVEN a kernel from 0 to 10 ns, a range from 9 to 30 ns, a kernel within the range, and a wait during both kernels
    trace = Trace(devices=[Device(0, 0, "GPU")], threads=[Thread(0, 1)])
    name = trace.strings.add("x")
    kinds = [DeviceKind.KERNEL, DeviceKind.ANNOTATION, DeviceKind.KERNEL, DeviceKind.SYNC]
    trace.device = DeviceSpans.of(
        kind=kinds, start_ns=[0, 9, 12, 5], duration_ns=[10, 21, 10, 9], stream=[7] * 4, name=[name] * 4, device=[0] * 4
    )
    events = _export(trace, tmp_path)["traceEvents"]
    assert not _crossings(events)
    by_category = {e["cat"]: e for e in events if e["ph"] == "X"}
    # THEN the range begins when the first kernel ends, has no stream, and no kernel is shortened
    range_ = by_category["gpu_user_annotation"]
    assert (range_["ts"], range_["dur"], range_["tid"], "args" in range_) == (0.01, 0.02, 7, False)
    assert [e["dur"] for e in events if e.get("cat") == "kernel"] == [0.01, 0.01]
    assert by_category["cuda_sync"]["tid"] != 7 and by_category["cuda_sync"]["args"]["stream"] == 7
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == range_["pid"]}
    assert (names[7], names[by_category["cuda_sync"]["tid"]]) == ("stream 7", "stream 7 (sync)")


tracks_and_spans = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 12), st.booleans()), max_size=14)


@given(tracks_and_spans, st.booleans())
def test_exported_events_are_clipped_so_that_they_nest_strictly(
    rows: list[tuple[int, int, int, bool]], on_stream: bool
) -> None:
    track, start, duration, _ = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(4))
    ends = nested_ends((track,), start, start + duration, keep_later=on_stream)
    assert (ends <= start + duration).all() and (ends >= start).all()
    events = [
        {"ph": "X", "pid": 0, "tid": t, "ts": s / 1000, "dur": (e - s) / 1000, "name": ""}
        for t, s, e in zip(track.tolist(), start.tolist(), ends.tolist(), strict=True)
    ]
    assert not _crossings(events)
    if on_stream:
        for one in np.unique(track):
            here = track == one
            assert Intervals(start[here], ends[here]).total_ns == Intervals(start[here], (start + duration)[here]).total_ns


@given(tracks_and_spans)
def test_clipping_ranges_never_shortens_gpu_work(rows: list[tuple[int, int, int, bool]]) -> None:
    track, start, duration = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    ranges = np.array([row[3] for row in rows], dtype=bool)
    end = start + duration
    starts = after_work((track,), start, end, ranges)
    assert np.array_equal(starts[~ranges], start[~ranges]) and (starts <= end).all()
    with_ranges = nested_ends((track,), starts, end, keep_later=True)
    alone = nested_ends((track[~ranges],), start[~ranges], end[~ranges], keep_later=True)
    assert np.array_equal(with_ranges[~ranges], alone)


def test_overlapping_host_events_are_shortened_as_little_as_possible(tmp_path: Path) -> None:
    # GIVEN a child that ends 1 ns after its parent, and a Python frame that ends 2 ns after the start of a long range
    trace = Trace(devices=[], threads=[Thread(0, 1)])
    trace.host = HostSpans.of(
        name=[trace.strings.add(n) for n in ("parent", "child", "frame", "range")],
        kind=[HostKind.OP, HostKind.OP, HostKind.PYTHON, HostKind.ANNOTATION],
        start_ns=[0, 10, 200, 210],
        duration_ns=[100, 91, 12, 500],
        thread=[0] * 4,
    )
    events = {e["name"]: e for e in _export(trace, tmp_path)["traceEvents"]}
    assert [round(events[n]["dur"] * 1000) for n in ("parent", "child", "frame", "range")] == [100, 90, 10, 500]


@pytest.mark.parametrize("name", ["a100_particle_fwd_bs2", "mi250_minitoy"])
def test_real_recordings_survive_export_and_import(shared_traces: Path, tmp_path: Path, name: str) -> None:
    trace = read_kineto(shared_traces / f"{name}.json.gz")
    (path,) = export_chrome(trace, tmp_path / "x.json")
    _like(trace, read_kineto(path))
    assert not _crossings(json.loads(path.read_bytes())["traceEvents"])


def test_export_can_write_to_a_named_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()

    export_chrome(training(steps=1), pipe)

    reader.join()
    assert pipe.is_fifo() and json.loads(read[0])["traceEvents"]


def test_a_kernel_name_with_invalid_unicode_can_be_exported(tmp_path: Path) -> None:
    trace = training(steps=1)
    trace.strings.texts[int(trace.device.name[0])] = "k\ud800"

    export_chrome(trace, tmp_path / "t.json")

    assert "k\ud800" in {event["name"] for event in json.loads((tmp_path / "t.json").read_bytes())["traceEvents"]}

"""Tests the import of small files with one peculiarity each, such as files changed by other tools and files with lost
events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from traces.analyses.transfers import transfers
from traces.analyses.waits import host_waits
from traces.figures.measure import op_of
from traces.figures.pace import pace
from traces.figures.summary import summarize
from traces.kineto import read_kineto, read_kineto_bytes
from traces.kineto.reading.odd_events import category_of
from traces.model.intervals import Intervals
from traces.model.run import QUEUES, STREAMS
from traces.model.trace import DeviceKind, HostKind, StepKind, Trace, TraceImportError

Event = dict[str, Any]
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}
MI300 = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4}


def span(name: str, start: float, dur: float, category: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": dur, "args": named}


def call(correlation: int, start: float, dur: float = 1, name: str = "cudaLaunchKernel", tid: int = 1) -> Event:
    return span(name, start, dur, "cuda_runtime", tid, correlation=correlation)


def kernel(start: float, dur: float, correlation: int = 0, stream: int = 7, name: str = "k", **args: Any) -> Event:
    return span(name, start, dur, "kernel", stream, device=0, stream=stream, correlation=correlation, **args) | {"pid": 0}


def text(*events: Event, gpu: Event = A100, **header: Any) -> bytes:
    return orjson.dumps({"schemaVersion": 1, "deviceProperties": [gpu], **header, "traceEvents": list(events)})


def imported(*events: Event, gpu: Event = A100) -> Trace:
    return read_kineto_bytes(text(*events, gpu=gpu))


def busy_us(trace: Trace) -> float:
    work = trace.device.take(trace.device.is_work)
    return Intervals(work.start_ns, work.end_ns).total_ns / 1000


# --- impossible durations


def test_a_kernel_that_overlaps_six_later_kernels_is_ignored() -> None:
    """GIVEN a kernel of 1.6 s in a recording with 1 ms of other work THEN the kernel is ignored."""
    later = [kernel(100 + 200 * place, 150, place + 2) for place in range(6)]
    calls = [call(place + 1, 10 + place) for place in range(7)]
    for gpu in (A100, H100, MI300):
        trace = imported(*calls, kernel(50, 1_600_000, 1, name="endless"), *later, gpu=gpu)
        assert trace.problems == {"impossible-overlap": 1}
        assert busy_us(trace) == 6 * 150


@pytest.mark.parametrize(
    ("gpu", "problems"),
    [(H100, {}), (A100, {"impossible-overlap": 1}), (MI300, {"impossible-overlap": 1})],
    ids=["programmatic dependent launch", "A100", "MI300"],
)
def test_only_on_hopper_a_kernel_may_start_before_its_predecessor_ends(gpu: Event, problems: dict[str, int]) -> None:
    trace = imported(call(1, 0), call(2, 2), kernel(10, 20, 1), kernel(25, 20, 2), gpu=gpu)
    assert trace.problems == problems
    assert busy_us(trace) == 35
    assert trace.device.duration_ns.tolist() == ([20_000, 20_000] if not problems else [15_000, 20_000])


@pytest.mark.parametrize("over", [0.5, 1.0])
def test_kernel_overlaps_of_a_microsecond_are_accepted(over: float) -> None:
    assert imported(call(1, 0), call(2, 2), kernel(10, 20 + over, 1), kernel(30, 5, 2)).problems == {}


def test_kernels_of_one_graph_launch_may_overlap() -> None:
    graph = call(1, 0, name="cudaGraphLaunch")
    assert imported(graph, kernel(10, 50, 1), kernel(20, 10, 1), kernel(25, 10, 1)).problems == {}
    assert imported(graph, call(2, 2), kernel(10, 50, 1), kernel(20, 10, 2)).problems == {"impossible-overlap": 1}


def test_kernels_of_different_streams_may_overlap() -> None:
    assert imported(call(1, 0), call(2, 2), kernel(10, 50, 1), kernel(20, 10, 2, stream=9)).problems == {}


def test_a_kernel_longer_than_the_profiler_window_counts_as_zero() -> None:
    window = span("PyTorch Profiler (0)", 0, 1000, "Trace") | {"pid": "Spans"}
    trace = imported(window, span("aten::mm", 10, 1000), call(1, 20), kernel(30, 5000, 1))
    assert trace.problems == {"duration-beyond-window": 1}
    assert busy_us(trace) == 0
    assert imported(window, span("aten::mm", 10, 1000), call(1, 20), kernel(30, 1000, 1)).problems == {}


def test_a_step_mark_with_no_end_lasts_until_the_last_host_event() -> None:
    """GIVEN a step mark that begins at 10 us and ends long after the profile of 1000 us WHEN the last op ends at 410 us THEN
    the step ends at 410 us."""
    window = span("PyTorch Profiler (0)", 0, 1000, "Trace") | {"pid": "Spans"}
    mark = span("ProfilerStep#1", 10, 500_000, "user_annotation")
    trace = imported(window, mark, span("aten::mm", 20, 390), call(1, 30), kernel(50, 20, 1))
    assert trace.problems == {"open-at-the-end": 1}
    assert (trace.steps.duration_ns.tolist(), busy_us(trace)) == ([400_000], 20)
    assert trace.problems == imported(window, mark | {"dur": 1002}, span("aten::mm", 20, 390)).problems


def test_work_of_mtia_accelerators_counts_as_gpu_work() -> None:
    """GIVEN a kernel of 30 us, a copy of 10 us at the same time and a wait of 500 us THEN the device is busy for 30 us."""
    launch = span("runFunction - job_prep", 10, 5, "mtia_runtime", correlation=3)
    rows = [("fc-dtype_Float", 20, 30, 3), ("dma_request", 25, 10, 0), ("event_wait", 20, 500, 0)]
    work = [kernel(start, dur, at, name=name) | {"cat": "mtia_ccp_events"} for name, start, dur, at in rows]
    trace = imported(span("aten::mm", 0, 60), launch, *work)
    kinds = sorted(DeviceKind(kind).name for kind in trace.device.kind.tolist())
    assert (kinds, busy_us(trace)) == (["KERNEL", "MEMCPY", "SYNC"], 30)
    assert trace.problems == {"kernel-without-launch": 1}


# --- lost kernels


def test_launches_without_kernels_are_counted() -> None:
    calls = [call(number, 10 * number) for number in range(1, 7)]
    trace = imported(*calls, kernel(100, 5, 5), kernel(110, 5, 6))
    assert trace.problems == {"lost-kernel": 4}


def test_without_correlation_ids_kernel_and_call_have_the_same_external_id() -> None:
    """On AMD GPUs, early releases of PyTorch 2 numbered runtime calls and ops separately. A kernel has the number of its
    runtime call."""
    ops = [span(name, 100 * at, 50, External_id=at) for at, name in ((1, "aten::mm"), (2, "aten::relu"))]
    calls = [span("hipExtModuleLaunchKernel", 100 * at + 20, 5, "cuda_runtime", External_id=2 * at) for at in (1, 2)]
    others = [span("hipGetDevicePropertiesR0600", 100 * at + 5, 2, "cuda_runtime", External_id=2 * at - 1) for at in (1, 2)]
    kernels = [span("k", 100 * at + 30, 10, "kernel", External_id=2 * at) | {"pid": 2, "tid": 0} for at in (1, 2)]
    trace = imported(*ops, *others, *calls, *kernels, gpu=MI300)
    assert trace.problems == {}
    assert [trace.strings[int(trace.host.name[row])] for row in op_of(trace).tolist()] == ["aten::mm", "aten::relu"]


@pytest.mark.parametrize(("lasts", "problem"), [(60, "unfinished-launch"), (20, "lost-kernel")])
def test_launches_still_queued_at_the_end_of_the_recording_are_not_lost_kernels(lasts: float, problem: str) -> None:
    """GIVEN launches at 70 and 80 us without kernels WHEN the GPU ran earlier work until 110 us THEN these launches were still
    queued. WHEN the earlier work ended at 75 us THEN their kernels were lost."""
    marks = [span(f"ProfilerStep#{number}", 30 * number, 30, "user_annotation") for number in range(3)]
    ops = [span("aten::mm", 30 * number + 5, 24) for number in range(3)]
    calls = [call(1, 10), call(2, 40), call(3, 66), call(4, 70), call(5, 80)]
    kernels = [kernel(20, 30, 1), kernel(50, lasts, 2), kernel(50 + lasts, 5, 3)]
    trace = imported(*marks, *ops, *calls, *kernels)
    assert trace.problems == {problem: 2}
    later = call(6, 200, name="cudaDeviceSynchronize")  # the GPU had time to run the last launches before this call
    assert imported(*calls, later, *kernels).problems == {"lost-kernel": 2}
    assert (trace.steps.kind == StepKind.INCOMPLETE).tolist() == [False, False, problem == "unfinished-launch"]


def test_a_recording_without_steps_begins_at_the_first_launch_of_any_thread() -> None:
    """GIVEN one thread that launches work from 1000 us on WHEN another thread launches work at 0 us THEN the recording begins
    at 0 us."""
    trace = imported(call(1, 0, 5, tid=2), call(2, 1000), call(3, 1020), kernel(10, 500, 1), kernel(1030, 10, 3))
    assert (trace.steps.start_ns.tolist(), trace.steps.duration_ns.tolist()) == ([0], [1_021_000])
    of = pace(trace)
    assert of is not None and (of.pace_ns, of.gpu_time_ns) == (1_040_000, 510_000)


def test_launches_during_a_graph_capture_need_no_kernels() -> None:
    trace = imported(
        call(1, 10),
        call(2, 20, name="cudaStreamBeginCapture_v10000"),
        call(3, 30),
        call(4, 35, tid=2),  # the launch of the autograd thread is captured, too
        call(5, 40, name="cudaStreamEndCapture"),
        call(6, 50, name="cudaGraphLaunch"),
        kernel(100, 5, 1),
        kernel(110, 5, 6),
        kernel(120, 5, 6),
    )
    assert trace.problems == {}


@pytest.mark.parametrize(("captured", "problems"), [(1, {}), (2, {"mostly-captured": 2})])
def test_idle_time_is_unknown_in_a_recording_of_a_graph_capture(captured: int, problems: dict[str, int]) -> None:
    """GIVEN a recording with one kernel WHEN two launches were captured into a graph THEN the bottleneck is unknown."""
    begin, end = call(8, 20, name="cudaStreamBeginCapture"), call(9, 90, name="cudaStreamEndCapture")
    launches = [call(2 + place, 30 + 10 * place) for place in range(captured)]
    trace = imported(call(1, 10), begin, *launches, end, kernel(15, 5, 1))
    assert trace.problems == problems
    limit = summarize(trace).bottleneck
    assert limit is not None and limit.limit == ("unknown" if problems else "host")


def test_launches_in_a_graph_capture_that_began_before_the_recording_need_no_kernels() -> None:
    end = call(2, 40, name="cudaStreamEndCapture")
    assert imported(call(1, 10), end, call(3, 50), kernel(100, 5, 3)).problems == {}
    assert imported(call(1, 10), end, call(3, 50), kernel(20, 5, 1)).problems == {"lost-kernel": 1}


@pytest.mark.parametrize("ids", [(7, 7), (7, 8), (8, 7)])
def test_a_launch_recorded_as_two_calls_needs_only_one_kernel(ids: tuple[int, int]) -> None:
    outer, inner = call(ids[0], 10, 5), call(ids[1], 11, 2, name="cuLaunchKernel") | {"cat": "cuda_driver"}
    assert imported(outer, inner, kernel(20, 5, 7)).problems == {}
    lost = imported(outer, inner, call(20, 30), kernel(40, 5, 20)).problems
    assert lost == {"lost-kernel": 1}


# --- events that Kineto does not write


def test_a_begin_event_and_its_end_event_become_one_event() -> None:
    """The inner end event closes the inner begin event, and each thread has its own events. The arguments of the end event are
    used, too."""
    begin = {"ph": "B", "cat": "cpu_op", "name": "aten::outer", "pid": 1, "tid": 1, "ts": 10, "args": {"External id": 3}}
    inner = begin | {"name": "aten::inner", "ts": 20, "args": {}}
    other = begin | {"name": "aten::other", "tid": 2, "ts": 22, "args": {}}
    end = {"ph": "E", "pid": 1, "tid": 1, "ts": 30}
    trace = imported(begin, inner, other, end, {**end, "ts": 50.5}, {**end, "tid": 2, "ts": 40}, {**end, "tid": 3})
    names = [trace.strings[index] for index in trace.host.name]
    lasted = dict(zip(names, trace.host.duration_ns.tolist(), strict=True))
    assert lasted == {"aten::outer": 40_500, "aten::inner": 10_000, "aten::other": 18_000}
    assert trace.problems == {"begin-without-end": 1}


@pytest.mark.parametrize(
    ("name", "args", "category"),
    [
        ("gemm", {"device": 0, "stream": 7, "correlation": 3, "grid": [1, 1, 1], "block": [1, 1, 1]}, "kernel"),
        ("Memcpy HtoD (Pageable -> Device)", {"device": 0, "stream": 7, "correlation": 3}, "gpu_memcpy"),
        ("Memset (Device)", {"device": 0, "stream": 7, "correlation": 3}, "gpu_memset"),
        ("cudaLaunchKernel", {"correlation": 3}, "cuda_runtime"),
        ("hipMalloc", {"correlation": 3}, "cuda_runtime"),
        ("aten::mm", {}, "cpu_op"),
        ("ProfilerStep#12", {}, "user_annotation"),
        ("train.py(3): step", {"Python id": 1}, "python_function"),
        ("MatMulV2", {"StreamId": 2}, ""),
        ("customers", {"correlation": 3}, ""),
        (7, {}, ""),
    ],
)
def test_a_missing_category_is_guessed_from_the_event(name: Any, args: Event, category: str) -> None:
    assert category_of({"ph": "X", "name": name, "args": args}) == category


def test_ops_of_the_old_profiler_without_kineto_are_recognized() -> None:
    """torch.autograd.profiler without Kineto wrote a bare array. All ops had the same pid and no category."""
    event = {"name": "mul", "ph": "X", "ts": 1.5, "dur": 2.25, "tid": 1, "pid": "CPU functions", "args": {}}
    trace = read_kineto_bytes(orjson.dumps([event, event | {"ts": 4.5}]))
    assert trace.host.kind.tolist() == [HostKind.OP, HostKind.OP] and not trace.problems
    assert trace.provenance["era"] == "E0"


@pytest.mark.parametrize("category", [{}, {"cat": ""}])
def test_events_without_a_category_are_classified_or_counted_as_problems(category: Event) -> None:
    bare = kernel(20, 5, 1, grid=[1, 1, 1], block=[32, 1, 1])
    del bare["cat"]
    bare |= category
    odd = span("MatMulV2", 40, 5, StreamId=2)
    del odd["cat"]
    trace = imported(call(1, 10), bare, odd)
    assert trace.device.kind.tolist() == [DeviceKind.KERNEL] and trace.problems == {"event-without-category": 1}
    assert trace.host.kind.tolist() == [HostKind.RUNTIME, HostKind.OTHER]


# --- files of other programs, and several recordings in one file


@pytest.mark.parametrize(
    "data",
    [
        b'[{"a": 1}, {"b": 2}]',
        b"[1, 2]",
        b"[]",
        b'[{"ph": "X", "ts": 1, "dur": 2, "name": "x"}]',
        b'{"traceEvents": [{"phase": "forward", "ts": 1, "dur": 2, "name": "Linear", "pid": 1, "tid": 1, "args": {}}]}',
    ],
)
def test_the_json_of_another_program_is_rejected_in_one_line(data: bytes) -> None:
    with pytest.raises(TraceImportError, match=r"^other.json: no events from torch.profiler .*give a trace") as raised:
        read_kineto_bytes(data, "other.json")
    assert "\n" not in str(raised.value)


def test_a_file_of_another_program_is_rejected_and_its_categories_are_named() -> None:
    """The error names only categories that are text."""
    made = [span("x", 10 * at, 5) | {"cat": category} for at, category in enumerate(["mine", 5, "", "also mine"])]
    with pytest.raises(TraceImportError, match=r"\(categories: also mine, mine\)"):
        read_kineto_bytes(orjson.dumps(made))


def test_all_recordings_in_one_file_are_imported() -> None:
    first = text(span("aten::a", 10**9, 5), call(1, 10**9 + 1), kernel(10**9 + 10, 5, 1))
    second = text(span("aten::b", 10**9 + 2, 5), call(1, 10**9 + 3), kernel(10**9 + 12, 7, 1))
    for between in (b"", b"\n", b"\r\n\r\n"):
        trace = read_kineto_bytes(first + between + second)
        assert (trace.problems, trace.ranks, busy_us(trace)) == ({"concatenated-files": 1}, [0, 1], 9)
        assert len(trace.device) == 2


@pytest.mark.parametrize(("early_us", "kind"), [(1001, "clocks-apart"), (1000, "kernel-before-launch")])
def test_clocks_disagree_if_gpu_work_begins_long_before_its_launch(early_us: int, kind: str) -> None:
    """GIVEN a recording with one kernel WHEN the kernel begins more than 1 ms before its launch THEN the clocks disagree, and
    idle time is unknown."""
    trace = imported(call(1, 5000), kernel(5000 - early_us, 50, 1), span("aten::a", 0, 6000))
    assert trace.problems == {kind: 1}
    summary = summarize(trace)
    is_unknown = kind == "clocks-apart"
    assert summary.bottleneck is not None and (not summary.analyses.idle) == is_unknown
    assert (summary.bottleneck.reason == "the clocks of host and GPU disagree") == is_unknown


def test_a_repeated_recording_in_a_file_is_read_once() -> None:
    """GIVEN a file that contains a recording with 5 us of work twice THEN the trace has 5 us of work on one rank."""
    once = text(span("aten::a", 10**9, 5), call(1, 10**9 + 1), kernel(10**9 + 10, 5, 1))
    for between in (b"", b"\n"):
        trace = read_kineto_bytes(once + between + once)
        assert (trace.problems, trace.ranks, busy_us(trace)) == ({"repeated-recording": 1}, [0], 5)


def test_several_profiler_cycles_of_one_process_in_a_file_are_one_rank() -> None:
    cycles = [
        text(span("aten::a", 1_700_000_000_000_000 + at, 5), call(1, 1_700_000_000_000_001 + at), distributedInfo={"rank": 3})
        for at in (0, 1_000_000)
    ]
    trace = read_kineto_bytes(b"\n".join(cycles))
    assert trace.ranks == [3] and len(trace.threads) == 1 and len(trace.host) == 4


def test_braces_in_a_name_do_not_split_a_damaged_file() -> None:
    broken = text(span('} {"traceEvents": [', 10, 5), span("aten::b", 20, 5))[:-1]
    trace = read_kineto_bytes(broken)
    assert trace.problems == {"truncated-json": 1} and len(trace.host) == 2


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["1.5-TP-0.trace.json", "1.5-TP-1.trace.json"], [0, 1]),
        (["1.5-TP-3.trace.json", "2.5-TP-2.trace.json"], [2, 3]),
        (["a-TP-0-PP-1.json", "a-TP-0-PP-0.json", "a-TP-1-PP-0.json"], [0, 1, 2]),
    ],
)
def test_the_rank_is_read_from_file_names_of_inference_servers(tmp_path: Path, names: list[str], ranks: list[int]) -> None:
    for name in names:
        (tmp_path / name).write_bytes(text(span("aten::a", 10, 5)))
    assert read_kineto(tmp_path).ranks == ranks


def test_a_copy_of_unknown_size_has_a_duration_but_no_rate() -> None:
    copy = {"device": 0, "stream": 7, "correlation": 1}
    name = "Memcpy HtoD (Pageable -> Device)"
    (found,) = transfers(imported(call(1, 0, name="cudaMemcpyAsync"), span(name, 10, 40, "gpu_memcpy", 7, **copy)))
    assert (found.count, found.bytes, found.duration_ns, found.gbps) == (1, 0, 40_000, None)


def test_an_import_keeps_step_marks_on_the_gpu_timeline() -> None:
    mark = span("ProfilerStep#5", 10, 40, "gpu_user_annotation", 7, device=0, stream=7) | {"pid": 0}
    trace = imported(call(1, 0), kernel(10, 40, 1), mark)
    row = trace.device.kind.tolist().index(DeviceKind.ANNOTATION)
    assert trace.strings[trace.device.name[row]] == "ProfilerStep#5" and busy_us(trace) == 40


_LOG = '"WARNING": ["CUDA event "record" of 3, x", "b"],\n"INFO": ["say "hi" , "deviceProperties": [1],"],'


@pytest.mark.parametrize("place", ["before", "within", "after"])
def test_header_fields_next_to_invalid_log_lines_are_read(place: str) -> None:
    """Until July 2026, Kineto wrote its log into the header of a file without escaping quotes."""
    event = orjson.dumps(span("aten::a", 10**9, 5)).decode()
    properties = f'"schemaVersion": 1, "deviceProperties": [{orjson.dumps(H100).decode()}], "cuda_runtime_version": 13000,'
    rank, events = '"distributedInfo": {"rank": 3, "world_size": 8}', f'"traceEvents": [{event}]'
    texts = {
        "before": f"{{{_LOG} {properties} {rank}, {events}}}",
        "within": f"{{{properties} {_LOG} {events}, {rank}}}",
        "after": f"{{{properties} {events}, {_LOG} {rank}}}",
    }
    trace = read_kineto_bytes(texts[place].encode())
    assert trace.problems == {"damaged-log": 1}
    assert (trace.ranks, trace.devices[0].name, trace.machine_of(3).cuda) == ([3], "NVIDIA H100 80GB HBM3", "13.0")


def test_correlation_ids_above_63_bits_are_matched() -> None:
    """Since July 2026, Kineto writes correlation ids as unsigned 64-bit numbers."""
    trace = imported(call(2**64 - 3, 10), kernel(20, 5, 2**64 - 3))
    assert trace.problems == {} and trace.device.launch.tolist() == [0]


def test_an_import_keeps_the_mean_and_maximum_of_hardware_counters() -> None:
    def sample(at: float, **values: float) -> Event:
        return {"ph": "C", "cat": "hardware_counters", "name": "PM", "pid": "GPU 0 Counters", "ts": at, "args": values}

    trace = imported(span("aten::a", 10, 5), sample(10, sm_active=20.0), sample(12, sm_active=50.0), sample(14, dram=7.0))
    assert trace.provenance["hardware_counters"] == {
        "GPU 0": {"sm_active": {"samples": 2, "mean": 35.0, "max": 50.0}, "dram": {"samples": 1, "mean": 7.0, "max": 7.0}}
    }
    assert trace.problems == {}


def test_intel_gpu_waits_and_collective_rows_do_not_count_as_work() -> None:
    rows = [
        span("wait", 10, 30, "xpu_sync", 7, device=0, stream=7),
        span("c", 10, 30, "collective_comm", 7, device=0, stream=7),
    ]
    trace = imported(span("aten::a", 10, 5), *rows)
    assert sorted(trace.device.kind.tolist()) == [DeviceKind.SYNC, DeviceKind.ANNOTATION]
    assert trace.problems == {} and busy_us(trace) == 0


def test_kernels_of_intel_gpus_are_matched_to_launches_and_lost_kernels_are_counted() -> None:
    """GIVEN two ops of 10 ms on an Intel GPU, as Kineto's XPU plugin writes them THEN each kernel has its op. A copy to the
    host is a wait of 19.9 ms, and a launch without a kernel is counted."""

    def launched(number: int, start: float, dur: float, name: str) -> Event:
        return span(name, start, dur, "xpu_runtime", correlation=number, External_id=number)

    def work(number: int, start: float, dur: float, name: str, category: str = "kernel") -> Event:
        told = {"sycl queue": 64, "l0 queue": "0x55d0", "correlation": number, "External id": number, "device": 0}
        return span(name, start, dur, category, 64) | {"pid": 0, "args": told}

    to_host = "Memcpy D2M (DEVICE -> MEMORY(Unknown))"
    ops = [span(name, 100 * at, 50, External_id=at) for at, name in ((1, "aten::mm"), (2, "aten::addmm"))]
    launches = [launched(at, 100 * at + 10, 5, "urEnqueueKernelLaunch") for at in (1, 2)]
    copy = [span("aten::item", 300, 20_000, External_id=3), launched(3, 310, 19_900, "urEnqueueUSMMemcpy")]
    kernels = [work(1, 150, 10_000, "gemm"), work(2, 10_150, 10_000, "gemm"), work(3, 20_195, 10, to_host, "gpu_memcpy")]
    trace = imported(*ops, *launches, *copy, *kernels)
    names = [trace.strings[int(trace.host.name[row])] for row in op_of(trace).tolist()]
    assert (trace.problems, names) == ({}, ["aten::mm", "aten::addmm", "aten::item"])
    assert trace.device.stream.tolist() == [64] * 3 and busy_us(trace) == 20_010
    waits = host_waits(trace, 0)
    assert (waits.start_ns - trace.host.start_ns.min()).tolist() == [210_000]
    assert (waits.end_ns - waits.start_ns).tolist() == [19_895_000]
    assert imported(*ops, *launches, *copy, kernels[0], kernels[2]).problems == {"lost-kernel": 1}


@pytest.mark.parametrize(("told", "numbers"), [({}, QUEUES), ({"hsa_queue": 2}, STREAMS)])
def test_amd_stream_numbers_are_marked_as_streams_or_hardware_queues(told: dict[str, Any], numbers: str) -> None:
    """Until June 2026, the profiler of ROCm numbered hardware queues instead of streams. The two kinds of numbers cannot be
    compared."""
    assert imported(call(1, 0), kernel(10, 5, 1, **told), gpu=MI300).run_of(0).stream_numbers == numbers
    assert imported(call(1, 0), kernel(10, 5, 1, **told), gpu=A100).run_of(0).stream_numbers == ""


def test_an_imported_stream_synchronization_is_assigned_to_its_stream() -> None:
    """Since April 2026, the thread id of a stream synchronization is the stream number plus 1,000,000."""
    sync = span("Stream Sync", 10, 5, "cuda_sync", 1_000_007, device=0, stream=7) | {"pid": 0}
    assert imported(call(1, 0), kernel(10, 5, 1), sync).device.stream.tolist() == [7, 7]
    del sync["args"]["stream"]
    assert imported(call(1, 0), kernel(10, 5, 1), sync).device.stream.tolist() == [7, 7]


def test_an_imported_synchronization_is_assigned_to_the_device_of_its_context() -> None:
    """GIVEN kernels of device 1 and a wait in their CUDA context WHEN the row of the wait names device 0 THEN the trace has
    only device 1. A wait in an unknown context keeps its device."""
    sync = span("Event Sync", 10, 5, "cuda_sync", 1, device=0, stream=-1, context=2) | {"pid": 0}
    work = kernel(10, 5, 1, context=2) | {"pid": 1}
    work["args"]["device"] = 1
    assert [device.index for device in imported(call(1, 0), work, sync).devices] == [1]
    sync["args"]["context"] = 1
    assert [device.index for device in imported(call(1, 0), work, sync).devices] == [0, 1]


# --- repeated events, and clocks that disagree


def test_a_repeated_step_in_a_file_is_read_once() -> None:
    """GIVEN an op, its call and its kernel that are written twice WHEN the file also contains another op THEN the trace has two
    ops, two calls and two kernels. The import counts three repeated events."""
    once = [span("aten::mm", 10, 10, External_id=1), call(1, 12) | {"args": {"correlation": 1, "External id": 1}}]
    once.append(kernel(20, 5, 1))
    other = [span("aten::relu", 30, 10, External_id=2), call(2, 32), kernel(40, 5, 2)]
    trace = imported(*once, *other, *once)
    assert trace.problems == {"repeated-event": 3}
    assert (len(trace.host), len(trace.device), busy_us(trace)) == (4, 2, 10)
    assert imported(*once, *other).device.columns()["launch"].tolist() == trace.device.launch.tolist()


@pytest.mark.parametrize(("pid", "problems"), [(77, {"several-processes": 2}), (None, {})])
def test_ops_of_two_processes_in_one_file_are_noticed(pid: int | None, problems: dict[str, int]) -> None:
    """GIVEN a kernel launch in one process WHEN another process has ops THEN the import notices two processes. A process that
    has only profiler ranges does not count."""
    first = span("aten::mm", 10, 10, External_id=1)
    other = first | {"name": "aten::relu", "ts": 30} | ({} if pid is None else {"pid": pid})
    ranges = span("a range", 50, 10, "user_annotation") | {"pid": 78}
    assert imported(first, call(1, 12), kernel(20, 5, 1), other, ranges).problems == problems


def test_a_graph_launch_may_contain_two_equal_kernels() -> None:
    trace = imported(call(1, 10, name="cudaGraphLaunch"), kernel(20, 5, 1), kernel(20, 5, 1))
    assert len(trace.device) == 2 and not trace.problems


@pytest.mark.parametrize(("late_us", "kernels", "problems"), [(2000, 4, {"clocks-late": 3}), (900, 4, {}), (2000, 3, {})])
def test_clocks_disagree_if_every_launch_seems_to_take_milliseconds(
    late_us: int, kernels: int, problems: dict[str, int]
) -> None:
    """GIVEN kernels of 5 us that are launched every 10 ms, so the GPU is idle between them WHEN each kernel begins 2 ms after
    its launch THEN the clocks disagree. The first kernel of a GPU does not count, because earlier work may be missing."""
    events = [of for at in range(kernels) for of in (call(at + 1, 10_000 * at), kernel(10_000 * at + 1 + late_us, 5, at + 1))]
    trace = imported(*events)
    assert trace.problems == problems
    limit = summarize(trace).bottleneck
    assert limit is None or (limit.reason == "the clocks of host and GPU disagree") is bool(problems)


def waited_for(late_us: int, *, name: str = "cudaDeviceSynchronize", tid: int = 1, others: Sequence[Event] = ()) -> Trace:
    """Import a kernel that ends `late_us` after a call that may wait for it. The call ends at 1000 us."""
    events = [call(1, 0), kernel(5, 995 + late_us, 1), call(2, 10, 990, name, tid), call(3, 5000), kernel(5010, 5, 3)]
    return imported(*events, *others)


@pytest.mark.parametrize(("late_us", "problems"), [(1001, {"work-after-synchronization": 1}), (1000, {})])
def test_clocks_disagree_if_gpu_work_ends_after_the_host_waited_for_it(
    late_us: int, problems: dict[str, int]
) -> None:
    trace = waited_for(late_us)
    assert trace.problems == problems
    limit = summarize(trace).bottleneck
    assert limit is not None and (limit.reason == "the clocks of host and GPU disagree") is bool(problems)


@pytest.mark.parametrize(
    ("kind", "late_us", "name", "problems"),
    [
        ("Pageable", 1001, "cudaMemcpyAsync", {"work-after-synchronization": 1}),
        ("Pageable", 1000, "cudaMemcpyAsync", {}),
        ("Pinned", 1001, "cudaMemcpyAsync", {}),
        ("Pageable", 1001, "cudaGraphLaunch", {}),
    ],
)
def test_clocks_disagree_if_a_copy_to_pageable_memory_ends_after_its_call(
    kind: str, late_us: int, name: str, problems: dict[str, int]
) -> None:
    """GIVEN two copies to the CPU WHEN the first copy ends 1001 us after its call has returned THEN the clocks disagree. A copy
    to pinned memory and a copy in a CUDA graph may end after their calls. A difference of 1000 us is accepted."""
    copy = {"cat": "gpu_memcpy", "name": f"Memcpy DtoH (Device -> {kind})"}
    calls = [call(at, 5000 * at, 100, name) for at in (1, 2)]
    trace = imported(*calls, kernel(5050, 50 + late_us, 1) | copy, kernel(10_050, 10, 2) | copy)
    assert trace.problems == problems


def test_calls_that_may_wait_for_other_work_do_not_prove_wrong_clocks() -> None:
    """A call of another thread may begin before the launch. A call for a stream may wait for other work. With two GPUs, a call
    may wait for the other GPU."""
    assert not waited_for(2000, name="cudaStreamSynchronize").problems
    assert not waited_for(2000, tid=2).problems
    elsewhere = kernel(20, 5, 4) | {"pid": 1}
    elsewhere["args"] = {**elsewhere["args"], "device": 1}
    assert not waited_for(2000, others=[call(4, 2), elsewhere]).problems


@pytest.mark.parametrize(("marked", "steps"), [(0, ""), (2, " any of the steps")])
def test_the_bottleneck_is_unknown_if_the_recording_ends_before_the_gpu_has_finished(marked: int, steps: str) -> None:
    """GIVEN a first kernel that runs until 300 us WHEN the launches at 150 and 250 us have no kernels THEN the recording ended
    before the GPU had finished."""
    marks = [span(f"ProfilerStep#{n}", 100 * n, 100, "user_annotation") for n in range(1, marked + 1)]
    limit = summarize(imported(*marks, call(1, 110), kernel(120, 180, 1), call(2, 150), call(3, 250))).bottleneck
    assert limit is not None and limit.reason == f"the recording ends before the GPU has finished{steps}"


def test_a_single_fast_launch_proves_that_the_clocks_agree() -> None:
    events = [of for at in range(4) for of in (call(at + 1, 10_000 * at), kernel(10_000 * at + 2001, 5, at + 1))]
    assert not imported(*events, call(9, 50_000), kernel(50_003, 5, 9)).problems
    # The last kernel runs from 32,001 to 32,006 us. Another kernel is launched at 32,003 us and starts 7 us later.
    assert not imported(*events, call(9, 32_003), kernel(32_010, 5, 9)).problems


@pytest.mark.parametrize(
    ("marked", "starts_us", "ends_us", "source"),
    [(True, [100, 200], [200, 280], "gpu marks"), (False, [100], [280], "whole")],
)
def test_steps_are_found_on_the_gpu_timeline_if_there_are_no_host_events(
    marked: bool, starts_us: list[int], ends_us: list[int], source: str
) -> None:
    """GIVEN a recording without host events WHEN two marked ranges on the GPU contain a kernel of 80 us each THEN the ranges
    are steps."""
    marks = [span(f"ProfilerStep#{n}", 100 * n, 90, "gpu_user_annotation", 7, stream=7, device=0) for n in (1, 2)]
    trace = imported(kernel(100, 80, 0), kernel(200, 80, 0), *(marks if marked else []))
    assert (trace.steps.start_ns // 1000).tolist() == starts_us and (trace.steps.end_ns // 1000).tolist() == ends_us
    assert trace.provenance["steps_from"] == source and not len(trace.phases)


# --- files of other exporters


def test_the_tasks_in_a_profile_of_torch_npu_are_imported_as_kernels() -> None:
    """GIVEN a profile of torch_npu, which writes times as text and tasks without categories THEN an op launches a kernel, and
    the host waits for it."""

    def event(name: str, ts: int, dur: int, **args: object) -> dict[str, object]:
        return {"ph": "X", "name": name, "pid": 2, "tid": 3, "ts": str(ts), "dur": dur, "args": args}

    op = event("aten::copy_", 100, 30) | {"pid": 1, "tid": 1, "cat": "cpu_op"}
    call = event("AscendCL@aclnnInplaceCopy", 110, 10, connection_id=7) | {"pid": 1, "tid": 1}
    wait = event("AscendCL@aclrtSynchronizeStream", 150, 385, connection_id=8) | {"pid": 1, "tid": 1}
    stream = {"Physic Stream Id": 4}
    kernel = event("inplace_copy", 500, 30, connection_id=7, **{"Task Type": "AI_VECTOR_CORE"}, **stream)
    record = event("EVENT_RECORD", 531, 1, connection_id=9, **{"Task Type": "EVENT_RECORD"}, **stream)
    copy = event("MemcopyAsync", 540, 5, **{"Task Type": "MEMCPY_ASYNC", "Stream Id": 4})
    trace = read_kineto_bytes(orjson.dumps([op, call, wait, kernel, record, copy]))
    assert trace.device.kind.tolist() == [DeviceKind.KERNEL, DeviceKind.SYNC, DeviceKind.MEMCPY]
    assert trace.device.stream.tolist() == [4, 4, 4]
    assert [trace.strings[trace.host.name[row]] for row in trace.device.launch[:1]] == ["AscendCL@aclnnInplaceCopy"]
    waits = host_waits(trace, 0)
    assert ((waits.start_ns // 1000).tolist(), (waits.end_ns // 1000).tolist()) == ([150], [530])

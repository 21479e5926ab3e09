"""Tests the analyses of launches, transfers, rates, modules and the critical path of a trace."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.traces.analyses.streams import two_streams
from tests.traces.handmade import MS, US, phase_grained, training
from traces.analyses.analyse import analyse
from traces.analyses.critical_path import critical_path
from traces.analyses.launches import launch_delay_ns, launch_figures, launched_rows, queue_length
from traces.analyses.modules import module_times
from traces.analyses.transfers import PARTS, transfers
from traces.figures.measure import window_ns
from traces.format.trace_file import load
from traces.kineto import read_kineto
from traces.library import find
from traces.model.trace import NONE, DeviceKind, DeviceSpans, HostKind, HostSpans, Steps, Trace
from traces.names.equivalent_ops import shapes_of_canonical
from traces.rates.achieved_rates import achieved

# --- launches and copies ---


def test_a_launch_queue_grows_at_launches_and_shrinks_at_kernel_starts(real: Trace) -> None:
    trace = two_streams("gemm", 41)
    queue = queue_length(trace, 0, 7)
    assert (queue.time_ns // US).tolist() == [0, 1, 10, 41] and queue.length.tolist() == [1, 2, 1, 0]
    assert (launch_delay_ns(trace, launched_rows(trace)) // US).tolist() == [9, 8, 39]
    (stream,) = launch_figures(real)
    assert (stream.count, stream.queue_most) == (9096, 569) and queue_length(real, 0, 7).length[-1] == 0


def test_the_copied_bytes_of_all_times_add_up_to_the_total(real: Trace) -> None:
    rows = transfers(real)
    assert sum(row.bytes for row in rows) == int(real.device.bytes[real.device.bytes > 0].sum())
    start_ns, end_ns = window_ns(real)
    for row in rows:
        assert sum(row.over_time) * (end_ns - start_ns) / PARTS == pytest.approx(row.bytes, rel=1e-6)


# --- rates ---


def test_the_flops_of_resnet50_equal_the_sum_over_its_layers(real: Trace) -> None:
    """The forward pass of ResNet-50 has 4.09 billion multiply-adds per image. He et al. count 3.8 billion, because they leave
    out the projections. The backward pass has twice as many, except that the first layer computes no gradient of the image."""
    rows = {row.op: row for row in achieved(real)}
    images, forward = 6 * 32, rows["convolution"]
    assert forward.flops == pytest.approx(2 * 4.087e9 * images, rel=0.002) and not forward.flops_bounded
    first_layer = 2 * 112 * 112 * 64 * 3 * 49 * images
    backward = rows["convolution_backward"]
    assert forward.flops is not None and backward.flops == pytest.approx(2 * forward.flops - first_layer, rel=0.03)
    # Some layers of ResNet-50 use Winograd's algorithm, which needs fewer multiplications.
    assert forward.winograd and 0.5 < (forward.flops_share or 0) < (forward.tflops or 0) / 15.7
    assert 0.8 < (rows["relu"].bytes_share or 0) < 1


def test_the_times_per_shape_add_up_to_the_time_of_the_op(real: Trace) -> None:
    whole = {row.op: row for row in achieved(real)}
    for op in ("convolution", "batch_norm", "relu"):
        parts = [row for row in achieved(real, by_shape=True) if row.op == op]
        assert sum(row.device_ns for row in parts) == whole[op].device_ns
        assert sum(row.calls for row in parts) == whole[op].calls and len(parts) > 3


# --- modules ---


def test_module_times_are_read_from_the_stack_frames_of_old_profilers(real: Trace) -> None:
    modules = {row.path: row for row in module_times(real)}
    whole = modules["resnet.py:249"]
    layers = [modules[f"resnet.py:249/resnet.py:{line}"] for line in range(237, 241)]
    assert whole.forward_ns == pytest.approx(32.7 * MS, rel=0.01) and whole.backward_ns == pytest.approx(61.3 * MS, rel=0.01)
    assert 0.8 < sum(row.forward_ns for row in layers) / whole.forward_ns < 1
    assert max(layers, key=lambda row: row.forward_ns) is layers[2]


def test_module_times_are_read_from_profiler_ranges(shared_traces: Path) -> None:
    trace = read_kineto(shared_traces / "h100_qwen05b_inference.json.gz")
    modules = {row.path: row for row in module_times(trace)}
    layers = [row for path, row in modules.items() if path.count("/") == 1 and "DecoderLayer" in path]
    assert len(layers) == 24 and all(row.calls == 1 for row in layers)
    inner = [row for path, row in modules.items() if path.count("/") == 1]
    whole = modules["Qwen2Model_0"]
    assert sum(row.forward_ns for row in inner) + whole.own_ns == pytest.approx(whole.forward_ns, abs=len(inner))


# --- the critical path ---


def test_critical_path_segments_have_no_gaps(real: Trace, shared_traces: Path) -> None:
    for trace in (real, training(), read_kineto(shared_traces / "h100_qwen05b_inference.json.gz")):
        end_ns = int(trace.steps.start_ns[0])
        for step in range(len(trace.steps)):
            path = critical_path(trace, step)
            assert path is not None and sum(path.sums.by_kind.values()) == path.sums.duration_ns
            assert path.segments[0].start_ns == end_ns
            assert all(a.end_ns == b.start_ns for a, b in pairwise(path.segments))
            end_ns = path.segments[-1].end_ns
            assert end_ns >= trace.steps.end_ns[step]


def test_a_kernel_that_the_host_waits_for_is_on_the_critical_path() -> None:
    """GIVEN two gemm kernels that run from 10 to 41 us and from 41 to 45 us WHEN the host synchronizes from 5 to 46 us THEN
    both kernels are on the critical path. The host continues alone until 50 us."""
    trace = two_streams("gemm", 41)
    trace.device = trace.device.take([0, 2])
    trace.device.duration_ns[:] = [31 * US, 4 * US]
    trace.strings.add("cudaStreamSynchronize")
    sync = HostSpans.of(
        thread=[0], kind=[HostKind.RUNTIME], name=[len(trace.strings) - 1], start_ns=[5 * US], duration_ns=[41 * US]
    )
    trace.host = HostSpans.concatenated([trace.host, sync])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[50 * US])
    path = critical_path(trace)
    assert path is not None
    told = [(segment.kind, (segment.end_ns - segment.start_ns) // US) for segment in path.segments]
    # The call that launched the first gemm returned after 1 us.
    assert told == [("host", 1), ("launch", 9), ("kernel", 31), ("kernel", 4), ("host", 5)]
    assert path.sums.by_name == {"gemm": 35 * US}


# --- all analyses ---


def test_a_trace_without_kernels_has_no_kernel_analyses() -> None:
    for trace in (Trace(), phase_grained(), load(find("p100x2-no-cudnn"))):
        of = analyse(trace)
        assert not of.idle and not of.launches and not of.achieved and of.critical_path is None


@pytest.mark.real_time
def test_analysing_a_million_spans_takes_only_seconds() -> None:
    steps = 200
    trace = training(steps=steps)
    count = 1_000_000 // len(trace.device)
    length_ns = int(trace.steps.end_ns.max() - trace.steps.start_ns.min())
    host, device = trace.host, trace.device
    shift = np.repeat(np.arange(count), len(device)) * length_ns
    trace.device = DeviceSpans.concatenated([device] * count)
    trace.device.start_ns = trace.device.start_ns + shift
    trace.device.launch = trace.device.launch + np.repeat(np.arange(count), len(device)).astype("i4") * len(host)
    trace.host = HostSpans.concatenated([host] * count)
    trace.host.start_ns = trace.host.start_ns + np.repeat(np.arange(count), len(host)) * length_ns
    trace.host.parent = np.where(
        trace.host.parent >= 0, trace.host.parent + np.repeat(np.arange(count), len(host)) * len(host), -1
    ).astype("i4")
    of = analyse(trace)
    assert sum(row.calls for row in of.achieved) == len(trace.device) > 900_000
    assert sum(row.count for row in of.launches) == 5 * steps  # the other launches are outside the steps
    assert of.idle["cuda:0"].window_ns == steps * 100 * US
    assert (trace.device.kind == DeviceKind.KERNEL).any()


def test_the_critical_path_search_ends_with_kernels_of_zero_duration() -> None:
    # GIVEN kernels that take no time and begin together, as in recordings with a resolution of 1 us. One has a launch call.
    trace = training(steps=1)
    trace.device.duration_ns[:] = 0
    trace.device.launch[1:] = NONE
    trace.device.start_ns[1:] = trace.device.start_ns[1]
    path = critical_path(trace)
    assert path is not None
    assert sum(of.end_ns - of.start_ns for of in path.segments) == int(trace.steps.duration_ns[0])


def test_shapes_of_an_op_have_the_same_order_under_all_its_names() -> None:
    image, weight, gradient = (32, 64, 56, 56), (256, 64, 1, 1), (32, 256, 56, 56)
    old = shapes_of_canonical("convolution_backward", (image, gradient, weight))
    assert old == shapes_of_canonical("convolution_backward", (gradient, image, weight)) == (gradient, image, weight)
    assert shapes_of_canonical("batch_norm", (image, (64,), (64,))) == (image,)
    # The operands of a matrix product have the same order under each name, so their order is kept.
    assert shapes_of_canonical("mm", ((2, 8), (8, 4))) == ((2, 8), (8, 4))

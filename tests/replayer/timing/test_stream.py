"""Tests that the simulated streams follow CUDA's rules, which the tests check for each item of work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replayer.cost_model.constants import LAUNCH_QUEUE_DEPTH
from replayer.timing.stream import VirtualStream
from traces.kineto import read_kineto
from traces.model.trace import DeviceKind

works = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 5), st.integers(1, 100)), max_size=40)


@given(works)
def test_work_starts_when_it_is_launched_and_its_stream_is_free(items: list[tuple[int, ...]]) -> None:
    stream = VirtualStream(0, 0)
    host_ns, previous_end = 0, 0
    for step_ns, latency_ns, gap_ns, duration_ns in items:
        host_ns += step_ns
        end_ns = stream.push(host_ns, latency_ns, gap_ns, duration_ns)
        start_ns = end_ns - duration_ns
        assert start_ns == max(host_ns + latency_ns, previous_end + gap_ns)
        assert start_ns >= previous_end
        previous_end = end_ns
        assert stream.ready_ns == end_ns


def test_the_launch_queue_has_room_until_its_depth_is_reached() -> None:
    stream = VirtualStream(0, 0)
    first_end = stream.push(0, 0, 0, 10)
    for _ in range(LAUNCH_QUEUE_DEPTH - 2):
        stream.push(0, 0, 0, 10)
    assert stream.room_at_ns() == 0
    stream.push(0, 0, 0, 10)
    assert stream.room_at_ns() == first_end


def test_a_recording_of_a_real_gpu_shows_the_depth_of_its_launch_queue(shared_traces: Path) -> None:
    trace = read_kineto(shared_traces / "v100_absolute_ns.json.gz")
    device, host = trace.device, trace.host
    is_work = np.isin(device.kind, (DeviceKind.KERNEL, DeviceKind.MEMCPY, DeviceKind.MEMSET))
    work = np.flatnonzero(is_work & (device.launch >= 0))
    work = work[device.stream[work] == 7]
    calls = np.sort(host.start_ns[device.launch[work]]), np.sort(host.end_ns[device.launch[work]])
    pending = np.arange(1, len(work) + 1) - np.searchsorted(np.sort(device.end_ns[work]), calls[1], side="right")
    assert pending.max() == LAUNCH_QUEUE_DEPTH
    full = pending == LAUNCH_QUEUE_DEPTH
    assert full.sum() > 1_000
    # A launch into a full queue blocks the host, so nearly all slow launches found a full queue.
    slow = (calls[1] - calls[0]) > 100_000
    assert slow.sum() > 300 and (pending[slow] >= LAUNCH_QUEUE_DEPTH - 3).mean() > 0.9


def test_a_wait_delays_later_work_but_never_advances_it() -> None:
    stream = VirtualStream(0, 0)
    stream.push(0, 0, 0, 100)
    stream.wait(50)
    assert stream.ready_ns == 100
    stream.wait(500)
    assert stream.push(0, 0, 0, 10) == 510

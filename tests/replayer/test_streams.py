"""Stream arithmetic against a brute-force reading of CUDA's rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replayer.streams import LAUNCH_QUEUE_DEPTH, VirtualStream

works = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 5), st.integers(1, 100)), max_size=40)


@given(works)
def test_work_starts_when_launched_and_when_its_stream_is_free_and_never_overlaps(items: list[tuple[int, ...]]) -> None:
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


def test_the_launch_queue_has_room_until_it_holds_a_thousand_pending_launches() -> None:
    stream = VirtualStream(0, 0)
    first_end = stream.push(0, 0, 0, 10)
    for _ in range(LAUNCH_QUEUE_DEPTH - 2):
        stream.push(0, 0, 0, 10)
    assert stream.room_at_ns() == 0
    stream.push(0, 0, 0, 10)
    assert stream.room_at_ns() == first_end


def test_waiting_holds_later_work_back_but_never_brings_it_forward() -> None:
    stream = VirtualStream(0, 0)
    stream.push(0, 0, 0, 100)
    stream.wait(50)
    assert stream.ready_ns == 100
    stream.wait(500)
    assert stream.push(0, 0, 0, 10) == 510

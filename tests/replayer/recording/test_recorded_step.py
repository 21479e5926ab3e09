"""Tests which phases of a recorded step have GPU time."""

from __future__ import annotations

import pytest

from replayer.recording.recorded_step import RecordedSegment
from traces.model.trace import NONE


@pytest.mark.parametrize(("device_ns", "is_host_only", "has_sum"), [(NONE, True, False), (0, True, True), (1, False, True)])
def test_a_phase_without_gpu_time_takes_only_host_time(device_ns: int, is_host_only: bool, has_sum: bool) -> None:
    segment = RecordedSegment("forward", device_ns=device_ns)
    assert (segment.is_host_only, segment.phase_grained) == (is_host_only, has_sum)

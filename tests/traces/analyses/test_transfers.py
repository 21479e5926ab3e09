"""Tests the total size of copies of one kind, and their rate over the time of the trace. All rates are worked out by hand."""

from __future__ import annotations

from traces.analyses.transfers import PARTS, TransferSum, transfers
from traces.model.trace import NONE, Device, DeviceKind, DeviceSpans, Trace


def copies(*rows: tuple[DeviceKind, str, int, int, int]) -> Trace:
    """Return a trace with the given work (kind, name, start, duration, bytes), which lasts 10 ns for each part of its time
    axis."""
    trace = Trace(devices=[Device(0, 0, "GPU")])
    rows = (*rows, (DeviceKind.KERNEL, "gemm", 10 * PARTS - 1, 1, NONE))
    kind, name, start_ns, duration_ns, size = zip(*rows, strict=True)
    trace.device = DeviceSpans.of(
        device=[0] * len(rows), stream=[7] * len(rows), kind=kind, name=[trace.strings.add(one) for one in name],
        start_ns=start_ns, duration_ns=duration_ns, bytes=size,
    )  # fmt: skip
    return trace


def test_a_copy_moves_its_bytes_at_a_constant_rate() -> None:
    """GIVEN two copies of 100 bytes in 10 ns WHEN the second copy starts in the middle of a part of the time axis THEN half of
    its bytes count in each of two parts."""
    (found,) = transfers(copies((DeviceKind.MEMCPY, "HtoD", 0, 10, 100), (DeviceKind.MEMCPY, "HtoD", 15, 10, 100)))
    assert found == TransferSum("HtoD", 2, 200, 20, 10.0, (10.0, 5.0, 5.0, *[0.0] * (PARTS - 3)))


def test_copies_of_unknown_size_or_without_duration_do_not_change_the_rate() -> None:
    trace = copies(
        (DeviceKind.MEMCPY, "HtoD", 0, 10, 40), (DeviceKind.MEMCPY, "HtoD", 20, 10, NONE),
        (DeviceKind.MEMCPY, "HtoD", 40, 0, 8), (DeviceKind.MEMSET, "Memset", 50, 10, 900),
        (DeviceKind.MEMCPY, "DtoD", 60, 10, NONE),
    )  # fmt: skip
    largest, known, unknown = transfers(trace)
    assert (largest.kind, largest.bytes, largest.gbps, largest.over_time[5]) == ("Memset", 900, 90.0, 90.0)
    assert (known.kind, known.count, known.bytes, known.duration_ns, known.gbps) == ("HtoD", 3, 40, 20, 4.0)
    assert sum(known.over_time) == 4.0
    assert unknown == TransferSum("DtoD", 1, 0, 10, None, ())


def test_the_time_axis_of_a_trace_begins_with_its_first_event() -> None:
    trace = copies((DeviceKind.MEMCPY, "HtoD", 0, 10, 100))
    trace.device.start_ns += 10**18
    assert transfers(trace)[0].over_time == (10.0, *[0.0] * (PARTS - 1)) and transfers(Trace()) == []

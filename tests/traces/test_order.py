"""Row order, and that links survive it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traces.model import NONE, DeviceSpans, HostSpans, MemoryEvents, Trace
from traces.order import in_order

spans = st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 20))


@given(
    st.lists(spans, max_size=20),
    st.lists(st.tuples(spans, st.integers(-1, 30)), max_size=20),
    st.lists(st.integers(0, 9)),
)
def test_rows_are_sorted_and_every_link_still_meets_its_span(
    hosts: list[tuple[int, int, int]], devices: list[tuple[tuple[int, int, int], int]], times: list[int]
) -> None:
    launches = [launch if launch < len(hosts) else NONE for _, launch in devices]
    trace = Trace(
        host=HostSpans.of(
            thread=[h[0] for h in hosts],
            start_ns=[h[1] for h in hosts],
            duration_ns=[h[2] for h in hosts],
            name=range(len(hosts)),
            parent=[i - 1 for i in range(len(hosts))],
        ),
        device=DeviceSpans.of(
            device=[d[0] for d, _ in devices],
            stream=[d[2] for d, _ in devices],
            start_ns=[d[1] for d, _ in devices],
            name=range(len(devices)),
            launch=launches,
        ),
        memory=MemoryEvents.of(time_ns=times),
    )
    ordered = in_order(trace)
    host, device = ordered.host, ordered.device
    keys = list(zip(host.thread, host.start_ns, -host.duration_ns, strict=True))
    assert keys == sorted(keys)
    tracks = list(zip(device.device, device.stream, device.start_ns, strict=True))
    assert tracks == sorted(tracks)
    assert list(ordered.memory.time_ns) == sorted(times)
    for name, parent in zip(host.name, host.parent, strict=True):
        assert (NONE if parent == NONE else int(host.name[parent])) == int(name) - 1
    for name, launch in zip(device.name, device.launch, strict=True):
        assert (NONE if launch == NONE else int(host.name[launch])) == launches[int(name)]

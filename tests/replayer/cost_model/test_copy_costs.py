"""Tests that the times of copies come from recorded copies of the same kind, from published figures or from estimates.
Estimated times are marked as estimates."""

from __future__ import annotations

import pytest

from replayer.cost_model.constants import KERNEL_FLOOR_NS, PAGEABLE_GBPS, PINNED_GBPS
from replayer.cost_model.copy_costs import CopyCosts, directions_of
from replayer.cost_model.device_speed import DeviceSpeed
from tests.replayer.recordings import Op, make_recording
from traces.model.trace import DeviceKind, DeviceSpans, Origin, Trace

SPEED = DeviceSpeed(bytes_per_ns=500.0)
PINNED, PAGEABLE = "Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)"
MB = 1_000_000
BATCH_BYTES = 128 * 3 * 224 * 224 * 4


def _trace(*copies: tuple[str, int, int]) -> Trace:
    """Return a recording with the given copies (name, bytes, duration in ns)."""
    trace = make_recording([("forward", 0, 10)], [Op("aten::mm", 0, 1, kernel=(5, 1))])
    trace.device = DeviceSpans.of(
        device=[0] * len(copies),
        stream=[7] * len(copies),
        kind=[DeviceKind.MEMCPY] * len(copies),
        name=[trace.strings.add(name) for name, _, _ in copies],
        duration_ns=[ns for _, _, ns in copies],
        bytes=[size for _, size, _ in copies],
    )
    return trace


def _cost(transfers: CopyCosts, kind: str, pinned: bool, size_bytes: int) -> tuple[int, Origin]:
    copy = transfers.copy(kind, pinned, size_bytes)
    return copy.duration_ns - KERNEL_FLOOR_NS, copy.origin


def test_an_unrecorded_copy_of_128_images_takes_the_published_time() -> None:
    transfers = CopyCosts.of(_trace(), SPEED)
    pinned_ns, origin = _cost(transfers, "h2d", True, BATCH_BYTES)
    assert origin is Origin.PUBLISHED and pinned_ns / 1e6 == pytest.approx(6.35, rel=0.005)
    pageable_ns, origin = _cost(transfers, "h2d", False, BATCH_BYTES)
    assert origin is Origin.PUBLISHED and pageable_ns / 1e6 == pytest.approx(17.35, rel=0.01)


@pytest.mark.parametrize(("kind", "gbps"), [("d2h", 4.4), ("d2d", 250.0), ("p2p", 12.6)])
def test_a_copy_without_published_figures_is_marked_as_an_estimate(kind: str, gbps: float) -> None:
    assert _cost(CopyCosts.of(_trace(), SPEED), kind, False, 44 * MB) == (int(44 * MB / gbps), Origin.ROOFLINE)


def test_the_bandwidth_of_each_kind_of_copy_is_fitted_separately() -> None:
    transfers = CopyCosts.of(
        _trace(
            (PINNED, 20 * MB, 2 * MB), (PINNED, 30 * MB, 3 * MB), (PINNED, 10 * MB, 9 * MB), (PAGEABLE, 20 * MB, 4 * MB),
            ("Memcpy DtoH (Device -> Pinned)", 8 * MB, MB), ("Memcpy DtoD (Device -> Device)", 300 * MB, MB),
        ),
        SPEED,
    )  # fmt: skip
    # The bandwidth is a median, so one slow copy changes nothing.
    assert _cost(transfers, "h2d", True, 40 * MB) == (4 * MB, Origin.SCALED)
    assert _cost(transfers, "h2d", False, 40 * MB) == (8 * MB, Origin.SCALED)
    assert _cost(transfers, "d2h", True, 40 * MB) == (5 * MB, Origin.SCALED)
    assert _cost(transfers, "d2h", False, 44 * MB)[1] is Origin.ROOFLINE
    assert _cost(transfers, "d2d", False, 300 * MB) == (MB, Origin.SCALED)


def test_small_copies_determine_the_latency_but_not_the_bandwidth() -> None:
    transfers = CopyCosts.of(_trace((PINNED, 256, 1_900), (PINNED, 512, 2_100), (PINNED, 1_024, 2_000)), SPEED)
    copy = transfers.copy("h2d", True, 0)
    assert (copy.duration_ns, copy.origin) == (2_000, Origin.PUBLISHED)
    assert transfers.copy("h2d", True, BATCH_BYTES).duration_ns == 2_000 + int(BATCH_BYTES / PINNED_GBPS)


@pytest.mark.parametrize(("size_bytes", "origin"), [(65_536, Origin.SCALED), (65_535, Origin.PUBLISHED)])
def test_copies_of_at_least_64_kib_determine_the_bandwidth(size_bytes: int, origin: Origin) -> None:
    transfers = CopyCosts.of(_trace((PINNED, size_bytes, size_bytes // 8)), SPEED)
    assert _cost(transfers, "h2d", True, 40 * MB)[1] is origin


def test_pageable_copies_are_never_estimated_faster_than_pinned_copies() -> None:
    fast = CopyCosts.of(_trace((PAGEABLE, 200 * MB, 10 * MB)), SPEED)
    assert _cost(fast, "h2d", True, 40 * MB) == (2 * MB, Origin.ROOFLINE)
    slow = CopyCosts.of(_trace((PINNED, 20 * MB, 10 * MB)), SPEED)
    assert _cost(slow, "h2d", False, 40 * MB) == (20 * MB, Origin.ROOFLINE)
    usual = CopyCosts.of(_trace((PAGEABLE, 100 * MB, 10 * MB)), SPEED)
    assert _cost(usual, "h2d", True, 44 * MB) == (int(44 * MB / PINNED_GBPS), Origin.PUBLISHED)
    assert PAGEABLE_GBPS < PINNED_GBPS


def test_copies_with_unknown_host_memory_count_for_pinned_and_pageable_rates() -> None:
    transfers = CopyCosts.of(_trace(("Memcpy HtoD (Host -> Device)", 20 * MB, 2 * MB)), SPEED)
    for pinned in (True, False):
        assert _cost(transfers, "h2d", pinned, 40 * MB) == (4 * MB, Origin.SCALED)
        assert transfers.copy("h2d", pinned, 1).others == frozenset()


def test_recorded_copies_of_other_kinds_are_listed() -> None:
    names = (PINNED, PAGEABLE, "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoD (Device -> Device)")
    trace = _trace(*((name, 8, 1_000) for name in names))
    transfers = CopyCosts.of(trace, SPEED)
    pinned, pageable, to_host, _ = (trace.strings.add(name) for name in names)
    assert transfers.copy("h2d", True, 8).others == {pageable, to_host}
    assert transfers.copy("h2d", False, 8).others == {pinned, to_host}
    assert transfers.read(8).others == {pinned, pageable}
    assert directions_of(trace) == {pinned: "h2d", pageable: "h2d", to_host: "d2h"}


def test_copies_between_gpus_use_the_recorded_or_the_given_bandwidth() -> None:
    recorded = _trace(("Memcpy PtoP (Device -> Device)", 20 * MB, MB))
    assert _cost(CopyCosts.of(recorded, SPEED), "p2p", False, 40 * MB) == (2 * MB, Origin.SCALED)
    assert _cost(CopyCosts.of(recorded, SPEED, 5), "p2p", False, 40 * MB) == (8 * MB, Origin.ROOFLINE)
    assert directions_of(recorded) == {recorded.strings.find("Memcpy PtoP (Device -> Device)"): "p2p"}

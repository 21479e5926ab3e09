"""Tests that every row of a real recording can be drawn and described, and that lanes have the figures of `trace info`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tui.view.scenes import text_of, whole
from traces.figures.measure import busy_by_stream
from traces.kineto import read_kineto
from tui.view.differences import differences
from tui.view.scene.alignment import Alignment
from tui.view.scene.lanes import Lane
from tui.view.scene.tracks import TrackKey, TrackKind
from tui.view.timeline.details import details
from tui.view.timeline.headline import headline
from tui.view.timeline.spans import neighbour
from tui.view.timeline.window import Window

NAMES = (
    "h100_transformer_toy mi250_minitoy a100_event_sync_multi_stream gpu_graph_vllm_decode a100_nccl_args_rank0of2"
    " cpu_only_rank34of300 gp100_gpu_user_annotation v100_resnet50_workers0"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_the_app_shows_all_work_of_a_real_recording(shared_traces: Path, name: str) -> None:
    trace = read_kineto(shared_traces / f"{name}.json.gz")
    scene = whole((name, trace))
    # Each stream has its measured busy time.
    busy = busy_by_stream(trace)
    assert sum(row.kind is TrackKind.GPU and row.stands_for is None for row in scene.rows) == len(busy)
    for (device, stream), expected in busy.items():
        (lane,) = [
            track.lane
            for key, track in scene._tracks[0].items()
            if key == TrackKey(TrackKind.GPU, trace.devices[device].rank, trace.devices[device].index, stream)
        ]
        assert isinstance(lane, Lane)
        assert sum(int(ns.sum()) for ns in lane.covered([0], [2**62]).values()) == expected.total_ns
    # Every row can be drawn at every zoom, and its events can be described.
    window = Window(scene, 60, 200)
    window.rows.folded.clear()
    window.resize(60, 200)
    for _ in range(4):
        assert len(text_of(window).splitlines()) == len(window.rows.lines) + 2
        window.zoom(0.05)
    for line in range(len(window.rows.lines)):
        window.line = line
        span = None
        for _ in range(2):
            span = neighbour(window, span, 1)
            assert span is None or len(details(scene, span, window.alignment, window.cursor_ns)) >= 4
    assert headline(scene, 80)


def test_two_recordings_of_the_same_program_are_drawn(shared_traces: Path) -> None:
    first, second = (read_kineto(shared_traces / f"v100_resnet50_workers0{again}.json.gz") for again in ("", "_rerun"))
    scene = whole(("first", first), ("again", second))
    assert headline(scene, 130)[0].text.startswith("Same program, ")
    for by in Alignment:
        window = Window(scene, 100, 60)
        window.align(by)
        window.home()
        assert "difference" in text_of(window)
    assert {one.what for one in differences(scene)} >= {"longer", "shorter", "waits longer", "waits less"}

"""Exports the visible time range of the timeline as a file in Chrome's trace format.

    write_range(window, Path("range.json.gz"))   # [Path("range_recorded.json.gz"), Path("range_replayed.json.gz")]
"""

from __future__ import annotations

from pathlib import Path

from traces.chrome.export import export_chrome
from traces.combining.excerpt import between
from tui.view.timeline.window import Window


def write_range(window: Window, path: Path) -> list[Path]:
    written = []
    scene = window.scene
    for word, trace, side in zip(scene.words, scene.traces, window.axis.sides, strict=True):
        pieces = side.pieces([int(window.start_ns), int(window.end_ns) + 1])
        seen = pieces.to_ns > pieces.from_ns
        if not seen.any():
            continue
        stem, dot, endings = path.name.partition(".json")
        target = path.with_name(f"{stem}_{word}{dot}{endings}") if word else path
        stretch = between(trace, int(pieces.from_ns[seen].min()), int(pieces.to_ns[seen].max()))
        written += export_chrome(stretch, target)
    return written

"""Measures the timeline app on large traces: the time to the first picture, and the time per frame.

The traces are generated, with 24 streams of kernels and copies and 8 rows of host calls, like a machine with 8 GPUs. The
benchmark measures one trace and two aligned traces. The first result is the time from the start of Python to the first picture.
The other results are the median and the longest time of a frame (32 rows, 200 columns) at many zoom levels and positions. Each
frame is drawn three times. The column "slowest" shows the longest time of all drawings, and "at rest" shows the longest of the
frames' median times. The column "GC" shows the garbage collection time in the slowest frame. Frame times are CPU times. The
time to the first picture is wall time, and the CPU time is printed beside it.

    python benchmarks/timeline.py [--events 1000000 10000000] [--first-picture-events 1000000] [--json timeline.json]
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from traces.format.trace_file import save  # noqa: E402
from traces.model.trace import Device, DeviceKind, DeviceSpans, HostKind, HostSpans, Steps, Thread, Trace  # noqa: E402
from tui.view.scene.scene import Scene  # noqa: E402
from tui.view.timeline.drawing import Drawing  # noqa: E402
from tui.view.timeline.window import Window  # noqa: E402

DEVICES, STREAMS, HOST_LANES = 8, 3, 8
LANES, COLUMNS, LABEL_COLUMNS = DEVICES * STREAMS + HOST_LANES, 200, 20
KERNELS = ("sgemm_128x64_nn", "elementwise_kernel", "batch_norm_bw", "reduce_kernel", "multi_tensor_apply", "ncclAllReduce",
           "cat_copy", "unnamed")  # fmt: skip
DRAWINGS = 3  # how often each frame is drawn
LINES = 100  # height of the terminal; the rows of both traces fit on it
STEP_NS = 150_000_000


def made_up(events: int, seed: int) -> Trace:
    """Return a trace with three quarters of its events on CUDA streams, each of which is busy for four fifths of the time."""
    random = np.random.default_rng(seed)
    trace = Trace(devices=[Device(0, index, "made up") for index in range(DEVICES)])
    names = [trace.strings.add(name) for name in KERNELS]
    trace.threads = [Thread(0, tid, f"thread {tid}", "other") for tid in range(HOST_LANES)]
    per_lane = events // LANES
    device, host = [], []
    for lane in range(LANES):
        lengths = random.integers(1_000, 40_000, per_lane)
        gaps = random.integers(0, 10_000, per_lane)
        end_ns = np.cumsum(lengths + gaps)
        spans = {"start_ns": end_ns - lengths, "duration_ns": lengths, "name": random.choice(names, per_lane)}
        if lane < DEVICES * STREAMS:
            device.append(spans | {"device": np.full(per_lane, lane // STREAMS), "stream": np.full(per_lane, lane % STREAMS)})
        else:
            host.append(spans | {"thread": np.full(per_lane, lane - DEVICES * STREAMS)})
    trace.device = DeviceSpans.of(kind=np.full(per_lane * len(device), DeviceKind.KERNEL), **_joined(device))
    trace.host = HostSpans.of(kind=np.full(per_lane * len(host), HostKind.OP), **_joined(host))
    steps = int(trace.device.end_ns.max()) // STEP_NS + 1
    trace.steps = Steps.of(
        rank=np.zeros(steps), number=np.arange(steps), start_ns=np.arange(steps) * STEP_NS, duration_ns=np.full(steps, STEP_NS)
    )
    return trace


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def frames(scene: Scene) -> tuple[list[list[float]], dict[float, float]]:
    """Return the CPU seconds of each frame's three drawings, and the CPU seconds of garbage collection, at many zoom levels and
    positions."""
    window = Window(scene, COLUMNS, LINES)
    taken, collected = [], {}
    began_s = spent_s = 0.0

    def collecting(phase: str, _: dict[str, int]) -> None:
        nonlocal began_s, spent_s
        if phase == "start":
            began_s = time.process_time()
        else:
            spent_s += time.process_time() - began_s

    gc.callbacks.append(collecting)
    while window.ns_per_column > 50:
        for place in (0.1, 0.45, 0.8):
            window.start_ns = float(round(window.axis.length_ns * place))
            drawings = []
            for _ in range(DRAWINGS):
                spent_s = 0.0
                drawings.append(frame_s(window))
                collected[drawings[-1]] = spent_s
            taken.append(drawings)
        window.zoom(0.4)
    gc.callbacks.remove(collecting)
    return taken, collected


def frame_s(window: Window) -> float:
    """Draw one frame with all rows, without cached data."""
    from tui.view.timeline.palette import palette_of
    from tui.view.timeline.timeline import (
        strip_of,  # not imported at the top, because the time to the first picture includes the import of textual
    )

    drawing, palette = Drawing(), palette_of(True)
    start = time.process_time()
    for number, (line, cells) in enumerate(drawing.frame(window)):
        strip_of(window, line, cells, LABEL_COLUMNS, number == window.line, palette)
    return time.process_time() - start


def first_picture(paths: list[str]) -> tuple[float, float]:
    """Return the seconds until a new app process has drawn the timeline, and the CPU seconds."""
    start = time.time()
    done = subprocess.run([sys.executable, __file__, "--child", *paths], capture_output=True, text=True, check=True)
    end, cpu_s = done.stdout.splitlines()[0].split()
    return float(end) - start, float(cpu_s)


def child(paths: list[str]) -> None:
    from tui.view.loading import stages

    reading = stages(paths)  # like the command `trace view`
    from tui.view.app import ViewApp
    from tui.view.timeline.timeline import TimelineView

    class Watched(ViewApp):
        def _arrived(self, stage: Any) -> None:
            super()._arrived(stage)
            if stage.scene is not None:
                self.call_after_refresh(self.seen)

        def seen(self) -> None:
            timeline = self.query_one(TimelineView)
            if any(c in timeline.render_line(2).text for c in "▁▂▃▄▅▆▇█"):
                print(time.time(), time.process_time(), flush=True)
                self.exit(0)

    app = Watched(reading)
    app.run(headless=True, size=(COLUMNS + LABEL_COLUMNS + 1, 80))
    if app.failure is not None:
        raise app.failure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--first-picture-events", type=int, default=1_000_000, help="limit for measuring the first picture")
    parser.add_argument("--runs", type=int, default=3, help="number of measurements of the first picture")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    heads = {"events": 11, "traces": 6, "lanes": 5, "columns": 7, "first picture s (CPU)": 21, "frame ms": 9, "slowest ms": 10,
             "GC ms": 6, "at rest ms": 10}  # fmt: skip
    print(" ".join(head.rjust(width) for head, width in heads.items()))
    results = []
    for events in args.events:
        made = [made_up(events, seed) for seed in (1, 2)]
        for count in (1, 2):
            scene = Scene.of(*((f"trace {n}", trace) for n, trace in enumerate(made[:count]))).with_host().with_counterparts()
            times, collected = frames(scene)
            slowest = max(max(drawings) for drawings in times)
            pictures: list[tuple[float, float]] = []
            if events <= args.first_picture_events:
                with tempfile.TemporaryDirectory() as folder:
                    paths = [str(Path(folder) / f"{n}.msgpack") for n in range(count)]
                    for trace, path in zip(made, paths, strict=False):
                        save(trace, path)
                    pictures = [first_picture(paths) for _ in range(args.runs)]
            row = {
                "events": events,
                "traces": count,
                "lanes": len(scene.rows),
                "columns": COLUMNS,
                "first_picture_s": median(wall for wall, _ in pictures) if pictures else None,
                "first_picture_cpu_s": median(cpu for _, cpu in pictures) if pictures else None,
                "frame_ms": 1e3 * median(time_s for drawings in times for time_s in drawings),
                "slowest_frame_ms": 1e3 * slowest,
                "slowest_frame_gc_ms": 1e3 * collected[slowest],
                "slowest_frame_at_rest_ms": 1e3 * max(median(drawings) for drawings in times),
            }
            results.append(row)
            picture = f"{row['first_picture_s']:.2f} ({row['first_picture_cpu_s']:.2f})" if pictures else "-"
            print(
                f"{events:11,} {count:6} {row['lanes']:5} {COLUMNS:7} {picture:>21} {row['frame_ms']:9.1f}"
                f" {row['slowest_frame_ms']:10.1f} {row['slowest_frame_gc_ms']:6.1f} {row['slowest_frame_at_rest_ms']:10.1f}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

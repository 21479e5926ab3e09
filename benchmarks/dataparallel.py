"""Compares training on one GPU and on two GPUs with nn.DataParallel: published step times and replays.

The benchmark replays examples/train_dataparallel.py with the bundled recordings p100-no-cudnn and p100x2-no-cudnn. The output
shows the published and the replayed median times of each phase and stage, for one and two GPUs.

    python benchmarks/dataparallel.py [--steps 12] [--clock wall] [--json dataparallel.json]

The recordings contain only phase times, which do not depend on the image size, so the benchmark uses small images. With the
virtual clock, the benchmark takes about 20 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.replays import run_replay  # noqa: E402
from traces.comparison.compare import compare  # noqa: E402
from traces.format.trace_file import load  # noqa: E402

BATCH = {"p100-no-cudnn": 128, "p100x2-no-cudnn": 256}

# Published medians in ms, for one GPU and for two: "GPU Emulator for Easy Reproducibility of DNN Training" (Summer of
# Reproducibility 2023), inter-GPU study.
PHASES = {
    "h2d": (6.5, 0.3), "forward": (254.7, 270.1), "loss": (0.3, 0.5), "backward": (495.1, 503.7), "optimizer": (3.1, 5.5),
}  # fmt: skip
PARTS = {
    "scatter": 6.7, "replicate": 6.2, "parallel_apply (cuda:0)": 255.5, "parallel_apply (cuda:1)": 255.5, "gather": 8.5,
    "gather_backward": 2.2, "broadcast_backward": 5.7,
}  # fmt: skip
COMPUTE, STEP, THROUGHPUT = (752.4, 775.7), (758.9, 776.1), (168.7, 329.9)


def replay(name: str, options: argparse.Namespace, folder: Path) -> Path:
    """Replay the example with `trace replay`, and return the timeline of the replay."""
    out = folder / f"{name}.msgpack"
    script = ["examples/train_dataparallel.py", "--trace", name, "--batch-size", str(BATCH[name])]
    script += ["--steps", str(options.steps), "--image-size", str(options.image_size), "--workers", "0"]
    run_replay("--clock", options.clock, "-o", str(out), *script)
    return out


def figures(facts: dict[str, Any]) -> dict[str, dict[str, list[float | None]]]:
    """Return the published and the replayed times in ms for each row of the table, for one and two GPUs. Times of replicas are
    device times, and all other times are host times."""

    def ms(of: dict[str, Any], device: bool = False) -> list[float | None]:
        found = (of[f"{'device_' if device else ''}{which}_median_ns"] for which in ("recorded", "replayed"))
        return [None if ns is None else ns / 1e6 for ns in found]

    rows: dict[str, dict[str, list[float | None]]] = {}
    for name, figures_ms in PHASES.items():
        rows[name] = {"published": [*figures_ms], "replayed": ms(facts["phases"][name])}
    for name, published in PARTS.items():
        replayed = ms(facts["parts"][name], name.startswith("parallel_apply"))
        rows[name] = {"published": [None, published], "replayed": replayed}
    # The parts of the study's step. The script's own time between phases and its waits for data depend on this machine.
    compute = [sum(rows[name]["replayed"][side] or 0 for name in PHASES if name != "h2d") for side in (0, 1)]
    step = [compute[side] + (rows["h2d"]["replayed"][side] or 0) for side in (0, 1)]
    rows["compute per batch"] = {"published": [*COMPUTE], "replayed": [*compute]}
    rows["whole step"] = {"published": [*STEP], "replayed": [*step]}
    images = [1000 * batch / ms for batch, ms in zip(BATCH.values(), step, strict=True)]
    rows["images/s"] = {"published": [*THROUGHPUT], "replayed": [*images]}
    return rows


def print_table(rows: dict[str, dict[str, list[float | None]]]) -> None:
    def cell(value: float | None) -> str:
        return f"{'-' if value is None else f'{value:.1f}':>9}"

    print(f"{'median ms':26}{'published':>9}{'':9}{'replayed':>9}{'':9}{'published':>12}{'replayed':>12}")
    print(f"{'':26}{'1 GPU':>9}{'2 GPUs':>9}{'1 GPU':>9}{'2 GPUs':>9}{'change':>12}{'change':>12}")
    for name, row in rows.items():
        changes = []
        for one, two in (row["published"], row["replayed"]):
            changes.append(f"{'-' if one is None or two is None else f'{two - one:+.1f}':>12}")
        label = f"- {name}" if name in PARTS else name
        print(f"{label:26}{''.join(map(cell, row['published'] + row['replayed']))}{''.join(changes)}")
    for name, words in (("compute per batch", "more compute per batch"), ("images/s", "times the throughput")):
        for which in ("published", "replayed"):
            one, two = rows[name][which]
            assert one and two
            print(f"{words}, {which}: " + (f"{two / one:.3f}" if name == "images/s" else f"{100 * (two / one - 1):+.1f} %"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--clock", choices=["virtual", "wall"], default="virtual")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        one, two = (load(replay(name, options, Path(temporary))) for name in BATCH)
    rows = figures(compare(one, two).to_json())
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

"""Replays the published measurements in the library, and prints the error of each phase. A replay must reproduce the published
times.

    python benchmarks/library_times.py                    # 216 cells, two batch sizes of each, within 10 minutes on two cores
    python benchmarks/library_times.py --gpus v100 --batches 8 --json times.json

The benchmark trains torchvision's networks under `trace replay --gpu` (benchmarks/programs/torchvision_training.py), and
synchronizes the host around each phase, as the measurements did. The batch sizes are 1, the largest measured one and, with
`--batches`, random ones between them (`--seed`). The error of a phase may be 1 % or 0.5 ms. If errors are larger, the benchmark
lists them and returns exit code 1. The virtual clock includes this machine's own time, which may exceed the step time of small
batches, but `--clock recorded` excludes it. Needs torchvision.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from timeit import repeat
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.replays import run_replay  # noqa: E402
from traces.library.catalogue import BUNDLED, cell, gpus, models  # noqa: E402
from traces.library.cells import read_cells  # noqa: E402

PROGRAM = ROOT / "benchmarks" / "programs" / "torchvision_training.py"
WITHIN, WITHIN_MS = 0.01, 0.5
PHASES = ("h2d", "forward", "rest")


def batches_of(gpu: str, model: str, count: int, chance: random.Random) -> list[int]:
    """Return batch size 1, the largest measured batch size, and random batch sizes between them."""
    last = cell(gpu, model).last_batch
    between = chance.sample(range(2, last), min(max(count - 2, 0), last - 2))
    return sorted({1, last, *between} if count > 1 else {last})


def replayed(gpu: str, plan: dict[str, list[int]], clock: str, steps: int) -> list[dict[str, Any]]:
    """Return what the program printed."""
    # The benchmark library_memory.py checks whether the largest batch fits.
    options = ["--clock", clock, "--gpu", gpu, "--gpu-memory", "1024GiB"]
    printed = run_replay(*options, str(PROGRAM), json.dumps(plan), str(steps))
    return [json.loads(line) | {"gpu": gpu} for line in printed.splitlines() if line.startswith("{")]


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """Return a table row. For each of the phases h2d, forward and rest, it has the measured time and the error, in ms."""
    of = cell(row["gpu"], row["model"])
    times = of.for_batch(row["batch"]).phases_ns
    phases = {}
    for name in PHASES:
        measured_ms, here_ms = times[name] / 1e6, row[name]
        off_ms = here_ms - measured_ms
        within = abs(off_ms) <= max(WITHIN * measured_ms, WITHIN_MS)
        phases[name] = {"measured_ms": measured_ms, "replayed_ms": here_ms, "error_ms": off_ms, "within": within}
    return {"gpu": row["gpu"], "model": row["model"], "batch": row["batch"], "phases": phases}


def read_entry(path: Path) -> None:
    read_cells(path).cell("resnet50")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", default=",".join(gpu.name for gpu in gpus()))
    parser.add_argument("--models", default="", help="only these networks, separated by commas")
    parser.add_argument("--batches", type=int, default=2, help="batch sizes per cell")
    parser.add_argument("--steps", type=int, default=6, help="steps of each batch size; the first two are not counted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clock", default="virtual", choices=("virtual", "recorded"))
    parser.add_argument("--jobs", type=int, default=2, help="replays at a time")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if importlib.util.find_spec("torchvision") is None:
        print("nothing was replayed, because torchvision is not installed")
        return 2
    chance, begun = random.Random(given.seed), perf_counter()
    plans = {}
    for gpu in given.gpus.split(","):
        wanted = given.models.split(",") if given.models else models(gpu)
        plans[gpu] = {model: batches_of(gpu, model, given.batches, chance) for model in wanted}
    with ThreadPoolExecutor(given.jobs) as pool:
        told = pool.map(lambda of: replayed(of[0], of[1], given.clock, given.steps), plans.items())
        rows = [judged(row) for rows in told for row in rows]
    print(f"{'ms off':8} {'cells':>5} {'rows':>5}   " + "   ".join(f"{name:>9}: median, worst, within" for name in PHASES))
    beyond = []
    for gpu in plans:
        mine = [row for row in rows if row["gpu"] == gpu]
        texts = []
        for name in PHASES:
            errors = [abs(row["phases"][name]["error_ms"]) for row in mine]
            good = sum(row["phases"][name]["within"] for row in mine)
            texts.append(f"{median(errors):17.3f} {max(errors):6.3f} {good:7}/{len(mine)}")
        print(f"{gpu:8} {len({row['model'] for row in mine}):5} {len(mine):5}   " + "   ".join(texts))
        beyond += [(row, name) for row in mine for name in row["phases"] if not row["phases"][name]["within"]]
    cells = {(row["gpu"], row["model"]) for row in rows}
    bad = {(row["gpu"], row["model"]) for row, _ in beyond}
    took_s = perf_counter() - begun
    good = len(cells) - len(bad)
    print(f"{good} of {len(cells)} cells within 1 % or 0.5 ms in each phase; {took_s:.0f} s, {given.clock} clock")
    for row, name in beyond[:20]:
        of = row["phases"][name]
        name = f"{row['gpu']}/{row['model']} batch {row['batch']} {name}"
        print(f"larger error: {name}: {of['measured_ms']:.3f} ms measured, {of['replayed_ms']:.3f} ms replayed")
    files = sorted(BUNDLED.glob("*.cells"))
    loads_ms = [1e3 * min(repeat(partial(read_entry, path), number=1, repeat=3)) for path in files]
    size_kb = sum(path.stat().st_size for path in files) / 1e3
    print(f"the table is {size_kb:.0f} kB in {len(files)} files; an entry is read within {max(loads_ms):.1f} ms")
    if given.json is not None:
        given.json.write_text(json.dumps({"clock": given.clock, "rows": rows}, indent=1))
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())

"""Replays recordings of ResNet-50 (batch size 32) on a real Tesla V100 with examples/train_resnet.py.

For each recording, the benchmark prints the step time without data loading, the phase times, the share of matched kernels and
the replay's overhead.

    python benchmarks/main_case.py --traces ../shared/traces [--steps 25] [--json main_case.json]

Takes about 10 s per recording. On a shared machine, compare only results of one run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.replays import run_replay  # noqa: E402
from traces.comparison.compare import compare  # noqa: E402
from traces.format.trace_file import load, save  # noqa: E402
from traces.kineto import read_kineto  # noqa: E402

CASES = {"v100_resnet50_workers0": 0, "v100_resnet50_workers4": 2}  # number of loader workers in the replay
RERUN = "v100_resnet50_workers0_rerun"
SHOWN_PHASES = ("h2d", "forward", "loss", "zero_grad", "backward", "optimizer")


def replay(trace: Path, workers: int, steps: int, folder: Path) -> dict[str, Any]:
    """Run the example with `trace replay`, and return its report."""
    report = folder / f"{trace.stem}.json"
    script = ROOT / "examples" / "train_resnet.py"
    words = ["--model", "resnet50", "--batch-size", "32", "--workers", str(workers), "--steps", str(steps)]
    run_replay("--report", str(report), str(script), "--trace", str(trace), *words)
    facts: dict[str, Any] = json.loads(report.read_text())
    return facts


def ms(value_ns: float | None) -> str:
    return "-" if value_ns is None else f"{value_ns / 1e6:9.3f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+7.2f} %"


def lane(phases: dict[str, Any], which: str, columns: int, width_ns: float) -> str:
    """Return the host phases of a median step in order, as bars with widths in proportion to their times."""
    text, at_ns = "", 0.0
    for name in SHOWN_PHASES:
        at_ns += phases[name][f"{which}_median_ns"] if name in phases else 0
        end = round(columns * at_ns / width_ns)
        if end > len(text):
            text += name[: end - len(text) - 1].ljust(end - len(text) - 1, "─") + " "
    return text


def print_picture(facts: dict[str, Any], columns: int = 92) -> None:
    """Print the recorded and the replayed phases of a median step, without data loading."""
    phases = {name: figures for name, figures in facts["phases"].items() if name in SHOWN_PHASES}
    width_ns = max(sum(f[f"{which}_median_ns"] for f in phases.values()) for which in ("recorded", "replayed"))
    for which in ("recorded", "replayed"):
        total_ns = sum(figures[f"{which}_median_ns"] for figures in phases.values())
        print(f"  {which}  {lane(phases, which, columns, width_ns)} {total_ns / 1e6:.1f} ms")


def print_case(name: str, facts: dict[str, Any]) -> None:
    print(f"\n{name}: same program: {facts['same_program']} ({facts['reason']})")
    print(f"  {'':22} {'recorded ms':>12} {'replayed ms':>12} {'error':>10}")
    rows = {"compute side": facts["compute_side"]} | {p: facts["phases"][p] for p in SHOWN_PHASES if p in facts["phases"]}
    for row, figures in rows.items():
        recorded, replayed = figures["recorded_median_ns"], figures["replayed_median_ns"]
        print(f"  {row:22} {ms(recorded):>12} {ms(replayed):>12} {percent(figures['error']):>10}")
        if figures.get("device_recorded_median_ns") is not None:
            device = figures["device_recorded_median_ns"], figures["device_replayed_median_ns"], figures["device_error"]
            print(f"  {'  by CUDA events':22} {ms(device[0]):>12} {ms(device[1]):>12} {percent(device[2]):>10}")
    print_picture(facts)
    shares = "  ".join(f"{key} {100 * share:.2f} %" for key, share in facts["coverage"].items())
    print(f"  device time: {shares}")
    host = facts["host"]
    lag_us = host["lag_ns_per_step"] / 1e3
    print(f"  host: {lag_us:.0f} us lag per step, {host['us_per_op']} us per op, {host['ops_per_step']} ops per step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--runs", type=int, default=1, help="replays per recording; medians over all are printed last")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in [*CASES, RERUN]:
            save(read_kineto(args.traces / f"{name}.json.gz"), folder / f"{name}.msgpack")
        floor = compare(load(folder / "v100_resnet50_workers0.msgpack"), load(folder / f"{RERUN}.msgpack")).to_json()
        errors: dict[str, list[float]] = {}
        for name, workers in CASES.items():
            for _ in range(args.runs):
                facts = replay(folder / f"{name}.msgpack", workers, args.steps, folder)
                print_case(name, facts)
                errors.setdefault(name, []).append(facts["compute_side"]["error"])
                results.setdefault(name, []).append(facts)
        print_case("two recordings of workers0 (noise floor)", floor | {"coverage": {}, "host": _NO_HOST})
        results["noise_floor"] = floor
        print("\ncompute side, median error of all runs:")
        for name, values in errors.items():
            print(f"  {name:34} {percent(median(values))}   (noise floor {percent(floor['compute_side']['error'])})")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


_NO_HOST = {"lag_ns_per_step": 0, "us_per_op": 0, "ops_per_step": 0}

if __name__ == "__main__":
    main()

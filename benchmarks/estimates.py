"""Measures the errors of `trace replay --estimate` for each kind of network and GPU, for the second table of docs/what_if.md.

    python benchmarks/estimates.py ../shared/published --python .../python [--networks 48] [--write]

Each network runs unmodified on a virtual GPU, and all times are estimated from the GPU's data sheet. The estimated step times
are compared with step times that GPEmu (torchvision, fp32) and timm (mixed precision) have published. The option `--python`
names a Python interpreter with torch, torchvision and timm. The option `--write` replaces the table from which `trace` prints
the errors of estimates.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.replays import run_replay  # noqa: E402
from benchmarks.what_if import measured_times, rows_of  # noqa: E402
from traces.names.cards import card_of, find_card  # noqa: E402
from traces.rates.estimate_errors import TABLE, EstimateError  # noqa: E402

PROGRAMS = Path(__file__).parent / "programs"
BATCHES = (32, 128)
BOARDS = {
    "k80": "Tesla_K80", "m40": "Tesla_M40", "p100": "Tesla_P100-PCIE-16GB", "v100": "Tesla_V100-PCIE-32GB",
    "rtx6000": "Quadro_RTX_6000", "a100": "NVIDIA_A100-SXM4-40GB",
}  # fmt: skip
# GPU, mode and file of timm's tables for channels_last and mixed precision
TIMM = (
    ("rtx3090", "training", "benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv"),
    ("rtx3090", "inference", "benchmark-infer-amp-nhwc-pt210-cu121-rtx3090.csv"),
    ("rtx4090", "inference", "benchmark-infer-amp-nhwc-pt240-cu124-rtx4090.csv"),
)


def estimated(python: str, gpu: str, *words: str) -> list[dict[str, Any]]:
    """Return the output of a program on a virtual GPU, without using the GPU's published step times."""
    options = ["-q", "--gpu", gpu, "--gpus", "2", "--estimate", "--clock", "recorded", "--gpu-memory", "1000GiB"]
    return [json.loads(line) for line in run_replay(*options, *words, python=python).splitlines() if line.startswith("{")]


def row(work: str, precision: str, card: str, ratios: list[float]) -> EstimateError:
    """Return one row of the table. The list `ratios` contains measured step times divided by estimated step times."""
    errors = [ratio - 1 for ratio in ratios]
    return EstimateError(
        work=work, precision=precision, card=card, cases=len(errors),
        error=round(median(map(abs, errors)), 3), bias=round(median(errors), 3),
        within=round(sorted(map(abs, errors))[int(0.9 * (len(errors) - 1))], 3),
    )  # fmt: skip


def chosen(names: set[str], count: int) -> list[str]:
    """Return every n-th name in alphabetical order."""
    ordered = sorted(names)
    return ordered[:: max(len(ordered) // count, 1)]


def fp32_row(args: argparse.Namespace, gpu: str, board: str) -> EstimateError:
    truth = measured_times(args.published, board)
    names = chosen({model for model, _ in truth}, args.networks)
    cells = [f"{name}:{','.join(map(str, BATCHES))}" for name in names]
    found = estimated(args.python, gpu, str(PROGRAMS / "torchvision_train.py"), "--cells", *cells)
    ratios = [
        sum(truth[each["model"], each["batch"]]) / (each["forward_s"] + each["rest_s"])
        for each in found
        if (each["model"], each["batch"]) in truth
    ]
    return row("training", "fp32", card_of(board.replace("_", " ")).names[0], ratios)


def timm_rows(args: argparse.Namespace) -> list[EstimateError]:
    tables = [
        {of["model"]: of for of in rows_of(args.published / "timm_images_per_s.csv.gz") if of["file"] == file}
        for _, _, file in TIMM
    ]
    names = chosen(set.intersection(*map(set, tables)), args.networks)
    rows = []
    for (gpu, kind, _), table in zip(TIMM, tables, strict=True):
        words = [f"{name}:{table[name]['img_size']}:{table[name]['batch']}" for name in names]
        found = estimated(args.python, gpu, str(PROGRAMS / "timm_networks.py"), kind.removesuffix("ing"), *words)
        for each in found:
            if "failed" in each:
                print(f"{each['model']}: {each['failed']}", file=sys.stderr)
        measured = {name: float(of["batch"]) / float(of["samples_per_s"]) for name, of in table.items()}
        ratios = [measured[str(each["model"])] / each["step_s"] for each in found if "step_s" in each]
        rows.append(row(kind, "half", find_card(gpu).names[0], ratios))
        print(text(rows[-1]), flush=True)
    return rows


def _stored(of: EstimateError) -> dict[str, object]:
    return {name: value for name, value in asdict(of).items() if name != "same_card"}


def text(of: EstimateError) -> str:
    return f"| {of.work} | {of.precision} | {of.card} | {of.cases} | {of.error:.0%} | {of.within:.0%} | {of.bias:+.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path, help="the folder of published measurements")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch, torchvision and timm")
    parser.add_argument("--networks", type=int, default=48, help="about this many networks of each library")
    parser.add_argument("--write", action="store_true", help="replace the table")
    args = parser.parse_args()
    print("| work | precision | GPU | cases | median error | 90 % are within | median of measured / estimated - 1 |")
    print("|---|---|---|---:|---|---|---|", flush=True)
    rows = []
    for gpu, board in BOARDS.items():
        rows.append(fp32_row(args, gpu, board))
        print(text(rows[-1]), flush=True)
    rows += timm_rows(args)
    if args.write:
        facts = json.loads(TABLE.read_text()) | {"networks": [_stored(of) for of in rows]}
        TABLE.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Builds the tables and curves in replayer/cost_model from published measurements, and prints their errors.

    python benchmarks/cost_tables.py all_reduce ../shared/published     # writes replayer/cost_model/all_reduce.json
    python benchmarks/cost_tables.py efficiency ../shared/published     # writes replayer/cost_model/efficiency.npz

The command `all_reduce` reads NCCL's all-reduce times from github.com/VIA-Research/vTrain (commit f8dda847): nccl-tests on V100
and A100, 2 to 8 GPUs of one machine, 1 MiB to 1 GiB. The table keeps only the sizes that linear interpolation (log time over
log bytes) needs for errors of at most `ALL_REDUCE_MISS`. For each size, the times of out-of-place and in-place runs are
averaged.

The command `efficiency` trains small neural networks on operator times from github.com/sitar-lab/NeuSight (commit 6945927d):
five GPUs, fp32, PyTorch 2.1, CUDA 12.1. A tenth of the measurements is not used for training, and the error on this tenth is
printed and stored. The option `--without "Tesla T4"` leaves out one GPU, and `--out FILE` sets the output file. For GPUs
without a power cable, only memory-bound operators are used (Note [Sustained clocks] in efficiency.py).

Measured times include launches. A line was fitted to the times of elementwise operators of 30 to 200 MB. On each of the five
GPUs, the value of the line at 0 bytes is 0.51 to 0.60 of the shortest time. This share of the shortest time is launch overhead,
and is subtracted from all times of the same kind of operator. Therefore, times near the shortest time are only upper bounds. In
the rows "linear", N is the inner size and K is the number of outputs. The opposite assignment contradicts the times of language
model heads on a P100.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from replayer.cost_model.constants import MEASURED_TENSORS, SLOT_POWERED  # noqa: E402
from replayer.cost_model.efficiency import ROWS_KINDS, features, network_name, peaks_of  # noqa: E402
from traces.names.cards import card_of  # noqa: E402

Floats = npt.NDArray[np.float64]

OUT = ROOT / "replayer" / "cost_model"
VTRAIN = "github.com/VIA-Research/vTrain at f8dda8473a48b373b1d25f51f52d685bff5150c5"

NEUSIGHT = "github.com/sitar-lab/NeuSight at 6945927d9afcca2b9daf021f8395e53edc5b4eef"

ALL_REDUCE_MISS = 0.03  # largest interpolation error, as a share of the time; times of neighboring sizes fluctuate by about 1 %
_CARDS = {"v100": "Tesla V100-SXM2-32GB", "a100": "NVIDIA A100-SXM4-40GB"}


def all_reduce_rows(folder: Path) -> dict[str, dict[int, tuple[Floats, Floats]]]:
    """Return message sizes in bytes and times in ns, by GPU and number of ranks."""
    found: dict[str, dict[int, tuple[Floats, Floats]]] = {}
    for path in sorted((folder / "vtrain_allreduce").glob("*.csv")):
        named = re.match(r"(\w+)_AR_GPU(\d+)_", path.name)
        if named:
            rows = np.array([[float(row[i]) for i in (0, 3, 5)] for row in list(csv.reader(path.open()))[1:]])
            times_ns = np.sqrt(rows[:, 1] * rows[:, 2])
            found.setdefault(_CARDS[named[1]], {})[int(named[2])] = rows[:, 0], times_ns
    return found


def knots_of(sizes: Floats, times_ns: Floats, miss: float = ALL_REDUCE_MISS) -> list[int]:
    """Return the indices of the rows to keep, which are chosen one after the other by the largest interpolation error."""
    x, y = np.log(sizes), np.log(times_ns)
    smooth = np.convolve(np.pad(y, 1, mode="edge"), (0.25, 0.5, 0.25), "valid")
    smooth[[0, -1]] = y[[0, -1]]
    kept = [0, len(x) - 1]
    while True:
        missed = np.abs(np.interp(x, x[kept], smooth[kept]) - smooth)
        worst = int(missed.argmax())
        if missed[worst] <= miss or len(kept) >= 40:
            return kept
        kept = sorted({*kept, worst})


def write_all_reduce(measured: dict[str, dict[int, tuple[Floats, Floats]]], path: Path) -> None:
    curves: dict[str, dict[str, list[list[int]]]] = {}
    for card, by_ranks in measured.items():
        for ranks, (sizes, times_ns) in by_ranks.items():
            kept = knots_of(sizes, times_ns)
            points = [[int(sizes[i]) >> 10, round(float(times_ns[i]) / 100) * 100] for i in kept]
            curves.setdefault(card, {})[str(ranks)] = points
    table = {"source": VTRAIN, "made": "benchmarks/cost_tables.py all_reduce", "points": "KiB, ns", "curves": curves}
    text = json.dumps(table).replace('"source"', '\n"source"').replace('"made"', '\n"made"').replace('"points"', '\n"points"')
    path.write_text(re.sub(r'("\d": \[)', r"\n  \1", text).replace(', "curves"', ',\n"curves"') + "\n")


# maps the name of a file to the kind of work
_ROWS_FILES = {
    **dict.fromkeys(("add", "mul", "div", "pow"), "elementwise"),
    **dict.fromkeys(("addu", "mulu", "divu", "powu", "relu", "gelu", "tanh"), "elementwise1"),
    "softmax": "softmax",
    "ln": "layer_norm",
}
_LAUNCH = 0.55  # launch time in each measurement, as a share of the shortest measured time of the same kind of op
_TELLS = 1.3  # a longer time than this multiple of the shortest time of its kind is more than launch overhead
_HIDDEN, _EMBEDDING = 48, 5
_SEEDS = 3
_UNNAMED = 0.25  # share of the training rows without the GPU's name; from these rows, a network learns to use the data sheet
_STEPS, _BATCH = {"matmul": 4500, "conv3": 2500, "rows": 2500}, 1024


@dataclass
class Operators:
    """Contains the measured operators for training one neural network, with one operator per row."""

    gpus: list[str]
    gpu: Floats  # index in `gpus`
    kind: Floats
    sizes: Floats
    moved_bytes: Floats
    flops: Floats
    times_ns: Floats
    tells: npt.NDArray[np.bool_]

    def inputs(self) -> Floats:
        return features(self.net, self.kind, self.sizes, self.moved_bytes, self.flops, self.peaks)

    net: str = ""

    @property
    def peaks(self) -> Floats:
        peaks: Floats = np.array([peaks_of(card_of(name)) for name in self.gpus])[self.gpu.astype(int)]
        return peaks

    @property
    def log_slower(self) -> Floats:
        peaks = self.peaks
        least_ns: Floats = np.maximum(self.flops / peaks[:, 0], self.moved_bytes / peaks[:, 1])
        told: Floats = np.log(self.times_ns / least_ns)
        return told


def operators(folder: Path, net: str, without: str = "") -> Operators:
    files = {"matmul": ("bmm", "linear"), "conv3": ("conv",), "rows": tuple(_ROWS_FILES)}[net]
    rows: list[tuple[Any, ...]] = []
    for name in files:
        with gzip.open(folder / "neusight_ops" / f"{name}.csv.gz", "rt") as file:
            for row in csv.DictReader(file):
                rows.append((row["gpu"], name, float(row["Latency"]) * 1e6, *_numbers(name, row)))
    rows = [row for row in rows if row[0] != without and (net == "rows" or card_of(row[0]).names[0] not in SLOT_POWERED)]
    gpus = sorted({row[0] for row in rows})
    table = np.array([row[2:] for row in rows])
    gpu = np.array([gpus.index(row[0]) for row in rows])
    files_of = np.array([files.index(row[1]) for row in rows])
    times_ns, sizes = table[:, 0], table[:, 1:]
    shortest, launch = np.zeros(len(rows)), np.zeros(len(rows))
    for own in {*zip(gpu.tolist(), files_of.tolist(), strict=True)}:
        mask = (gpu == own[0]) & (files_of == own[1])
        shortest[mask], launch[mask] = np.percentile(times_ns[mask], 1), _LAUNCH * np.percentile(times_ns[mask], 0.1)
    tells = times_ns > _TELLS * shortest
    kind = np.zeros(len(rows))
    if net == "rows":
        kind = np.array([ROWS_KINDS.index(_ROWS_FILES[row[1]]) for row in rows], dtype=np.float64)
        tensors = np.array([MEASURED_TENSORS[_ROWS_FILES[row[1]]] for row in rows])
        moved, flops, sizes = sizes[:, 0] * sizes[:, 1] * 4 * tensors, np.zeros(len(rows)), sizes[:, :2]
    elif net == "conv3":
        images, inputs, outputs, places = sizes[:, :4].T
        moved = 4 * (images * places * (inputs + outputs) + 9 * inputs * outputs)
        flops = 2 * images * places * inputs * outputs * 9
    else:
        batch, m, n, k = sizes[:, :4].T
        moved, flops = 4 * batch * (m * k + k * n + m * n), 2 * batch * m * n * k
    times_ns = np.where(tells, times_ns, shortest) - launch
    sizes = sizes[:, :2] if net == "rows" else sizes
    return Operators(gpus, gpu.astype(float), kind, sizes, moved, flops, times_ns, tells, net)


def _numbers(name: str, row: dict[str, str]) -> tuple[float, float, float, float]:
    """Return the sizes of an operator in the order of op_work.py."""
    if name == "conv":
        size = (float(row["Input_Size"]) + 2 * float(row["Padding"]) - 3) // float(row["Stride"]) + 1
        return float(row["B"]), float(row["Input_Channel"]), float(row["Output_Channel"]), size * size
    if name == "linear":
        return float(row["B"]), float(row["M"]), float(row["K"]), float(row["N"])
    if name == "bmm":
        return float(row["B"]), float(row["M"]), float(row["N"]), float(row["K"])
    return float(row["B"]), float(row["H"]), 0.0, 0.0


def fastest(rows: Operators) -> Floats:
    """Return, by GPU, the logarithm of the ratio of time to roofline time for the fastest hundredth of the operators."""
    gpus = [rows.gpu == i for i in range(len(rows.gpus))]
    return np.array([np.percentile(rows.log_slower[of & rows.tells], 1) for of in gpus])


def learned(rows: Operators, seed: int = 0) -> tuple[dict[str, Floats], float]:
    """Return the weights of one neural network, and its mean error on operators that were not used for training."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    random = np.random.default_rng(seed)
    inputs, wanted = rows.inputs(), rows.log_slower
    mean, scale = inputs[rows.tells].mean(0), inputs[rows.tells].std(0) + 1e-6
    held_out = random.random(len(wanted)) < 0.1
    anyone = len(rows.gpus)
    embeddings = torch.nn.Embedding(anyone + 1, _EMBEDDING)
    torch.nn.init.normal_(embeddings.weight, 0, 0.3)
    widths = (inputs.shape[1] + _EMBEDDING, _HIDDEN, _HIDDEN, 1)
    layers = [torch.nn.Linear(wide, next_wide) for wide, next_wide in pairwise(widths)]
    x = torch.tensor((inputs - mean) / scale, dtype=torch.float32)
    y, gpu = torch.tensor(wanted, dtype=torch.float32), torch.tensor(rows.gpu.astype(np.int64))
    tells = torch.tensor(rows.tells)

    def told(which: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        values = torch.cat([x[which], embeddings(of)], 1)
        for layer in layers[:-1]:
            values = torch.tanh(layer(values))
        known: torch.Tensor = layers[-1](values)[:, 0]
        return known

    weights = np.where(rows.flops > 1e9, 2.0, 1.0) * np.where(rows.tells, 1.0, 0.3) * ~held_out
    drawn = random.choice(len(wanted), (_STEPS[rows.net], _BATCH), p=weights / weights.sum())
    parameters = [parameter for module in (embeddings, *layers) for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, 3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=len(drawn))
    for batch in drawn:
        which = torch.tensor(batch)
        of = torch.where(torch.rand(len(batch)) < _UNNAMED, anyone, gpu[which])
        missed = told(which, of) - y[which]
        missed = torch.where(tells[which], missed, missed.clamp(min=0))  # times near the launch overhead are only upper bounds
        loss = torch.nn.functional.smooth_l1_loss(missed, torch.zeros_like(missed), beta=0.03)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        judged = torch.tensor(np.flatnonzero(held_out & rows.tells))
        errors = np.abs(np.expm1((told(judged, gpu[judged]) - y[judged]).numpy()))
    for i, name in enumerate(rows.gpus):
        of_gpu = errors[rows.gpu[judged.numpy()] == i]
        print(f"{rows.net:8} {name:24} error on held-out rows: mean {of_gpu.mean():.1%}, median {np.median(of_gpu):.1%}")
    arrays = {"mean": mean, "scale": scale, "embeddings": embeddings.weight.detach().numpy()[:anyone], "fastest": fastest(rows)}
    for i, layer in enumerate(layers):
        arrays[f"w{i}"], arrays[f"b{i}"] = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    return {f"{rows.net}_{name}": array.astype(np.float32) for name, array in arrays.items()}, float(errors.mean())


def efficiency(folder: Path, out: Path | None = None, without: str = "") -> None:
    """Write the networks. Several networks are trained for each kind of operator, and their predictions are averaged."""
    arrays: dict[str, Floats] = {}
    errors, gpus = {}, {}
    for net in ("matmul", "conv3", "rows"):
        rows = operators(folder, net, without)
        missed = []
        for seed in range(_SEEDS):
            weights, error = learned(rows, seed)
            missed.append(error)
            arrays |= {name.replace(net, network_name(net, seed), 1): array for name, array in weights.items()}
        errors[net] = sum(missed) / _SEEDS
        gpus[net] = rows.gpus
    about = {
        "source": NEUSIGHT, "made": "benchmarks/cost_tables.py efficiency", "gpus": gpus, "errors": errors, "seeds": _SEEDS,
    }  # fmt: skip
    np.savez_compressed(out or OUT / "efficiency.npz", about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("all_reduce", "efficiency"))
    parser.add_argument("published", type=Path, help="the folder of the measurements")
    parser.add_argument("--out", type=Path, help="write the networks to this file")
    parser.add_argument("--without", default="", metavar="GPU", help="hide a GPU's measurements")
    args = parser.parse_args()
    if args.table == "all_reduce":
        write_all_reduce(all_reduce_rows(args.published), OUT / "all_reduce.json")
    else:
        efficiency(args.published, args.out, args.without)


if __name__ == "__main__":
    main()

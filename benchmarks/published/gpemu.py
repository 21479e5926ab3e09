"""Converts GPEmu's measurements of 36 torchvision networks on six GPUs, with batch sizes from 1 to 256, to library files.

    python -m benchmarks.published.gpemu gpemu_times.csv.gz --commit 27e9534e...

The CSV file has the columns gpu, model, batch, forward_s, rest_s, h2d_pageable_s, peak_mib and persistent_mib. Only numbers are
copied, together with the repository and the commit. The parameters and modules of the networks are listed in
torchvision_networks.json in this folder.

Note [Extrapolated rows]
    The study's authors extrapolated with a line beyond the last batch that fitted. From the first extrapolated row on, any
    three neighboring batches are on one line to within 1e-12 s. Measured rows never lie on such a line. If fewer than three
    rows at the end were extrapolated, they would not be detected.

    Memory was measured in other runs, for some cells only at every sixteenth batch. The authors filled gaps with a parabola
    (their profiler/memory/organize_data.py). The parabola's values are not multiples of 512 bytes, which is PyTorch's unit of
    allocation.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from traces.library.cells import Gpu, LibraryCell, write_cells
from traces.model.trace import Column
from traces.model.workload import WorkloadSignature

FOLDER = Path(__file__).resolve().parents[2] / "traces" / "library"
NETWORKS = Path(__file__).with_name("torchvision_networks.json")

# By the study's GPU name: our name, torch's device name, and total memory in bytes as CUDA reports it in public logs
GPUS = {
    "Tesla_K80": Gpu("k80", "Tesla K80", 11_996_954_624),
    "Tesla_M40": Gpu("m40", "Tesla M40", 11_996_954_624),
    "Tesla_P100-PCIE-16GB": Gpu("p100", "Tesla P100-PCIE-16GB", 17_071_734_784),
    "Tesla_V100-PCIE-32GB": Gpu("v100", "Tesla V100-PCIE-32GB", 34_079_637_504),
    "Quadro_RTX_6000": Gpu("rtx6000", "Quadro RTX 6000", 25_386_352_640),
    "NVIDIA_A100-SXM4-40GB": Gpu("a100", "NVIDIA A100-SXM4-40GB", 42_314_694_656),
}

REPOSITORY = "github.com/mengwanguc/gpemu"
PROVENANCE = {
    "kind": "published",
    "study": "GPEmu: A GPU Emulator for Faster and Cheaper Prototyping and Evaluation of Deep Learning System Research"
    " (PVLDB 2025)",
    "repository": REPOSITORY,
    "grain": "phase",
    "protocol": "fp32, 3x224x224, model.train(), SGD with momentum 0.9 and weight decay 1e-4, data resident on the GPU, the"
    " host synchronised around forward and around the rest; mean of 10 batches less the 2 slowest; cudnn.benchmark off for"
    " times, on for memory",
    "software": "PyTorch with cuDNN; the study does not give the versions. PyTorch's version is inferred: in 1.11, the memory"
    " that autograd keeps for MobileNetV2 and ShuffleNet changed, and some of the networks were added in 1.8",
    "spread": "0.2 to 0.9 % between batches, according to the study; median 0.6 to 2.1 % between neighbouring batch sizes",
    "done": "seconds and MiB were converted to nanoseconds and bytes; the rows beyond the last batch that fitted, which the"
    " authors extrapolated, and the memory values that they interpolated are left out",
    "estimated": "how the rest (criterion, zero_grad, backward, optimizer: measured as one figure) is split among its phases",
    "lacks": ["kernels", "host ops", "data-loading waits", "recorded values", "first batches"],
}

OLDER_TORCH, A100_TORCH = "1.8 to 1.10", "1.11 to 1.13"

_ON_A_LINE_S = 1e-12
_MIB = 1 << 20
_BLOCK_BYTES = 512  # see Note [Extrapolated rows]


def first_extrapolated(values: Column) -> int:
    """Return the index at which the straight line at the end of the values begins. If the values do not end in a line, return
    their number.

    The list `values` contains one time in seconds for each batch size. Batch sizes increase in steps of one.
    """
    bends = np.abs(values[:-2] + values[2:] - 2 * values[1:-1]) > _ON_A_LINE_S * np.maximum(1, np.abs(values[1:-1]))
    straight_from = int(np.flatnonzero(bends).max()) + 1 if bends.any() else 0
    return straight_from if straight_from < len(bends) else len(values)


def build(rows: Path, commit: str, folder: Path) -> None:
    """Write one file per GPU to `folder`."""
    networks = {name: WorkloadSignature.from_json(told) for name, told in json.loads(NETWORKS.read_text()).items()}
    provenance = PROVENANCE | {"commit": commit}
    table: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    with gzip.open(rows, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            table[row["gpu"], row["model"]].append(row)
    for study_name, gpu in GPUS.items():
        cells = [
            _cell(gpu, model, networks[model], measured) for (name, model), measured in table.items() if name == study_name
        ]
        path = folder / f"{gpu.name}.cells"
        write_cells(path, gpu, cells, provenance | {"torch": A100_TORCH if gpu.name == "a100" else OLDER_TORCH})
        rows_there = sum(len(of) for (name, _), of in table.items() if name == study_name)
        rows_kept = sum(len(cell.batches) for cell in cells)
        print(f"wrote {path}: {len(cells)} networks, {rows_kept} of {rows_there} rows were measured", file=sys.stderr)


def _cell(gpu: Gpu, model: str, workload: WorkloadSignature, rows: list[dict[str, str]]) -> LibraryCell:
    rows = sorted(rows, key=lambda row: int(row["batch"]))
    batches = np.array([int(row["batch"]) for row in rows])
    if (np.diff(batches) != 1).any():
        raise SystemExit(f"{gpu.name}/{model}: batch sizes are missing, so extrapolated rows cannot be recognized")
    column = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name not in ("gpu", "model", "batch")}
    count = min(first_extrapolated(column["forward_s"]), first_extrapolated(column["rest_s"]))
    peak, persistent = column["peak_mib"] * _MIB, column["persistent_mib"] * _MIB
    is_measured = (peak % _BLOCK_BYTES == 0) & (persistent % _BLOCK_BYTES == 0) & (peak <= gpu.memory_bytes)
    times = {"h2d": "h2d_pageable_s", "forward": "forward_s", "rest": "rest_s"}
    return LibraryCell(
        gpu,
        model,
        workload,
        batches[:count],
        {phase: np.round(column[name][:count] * 1e9).astype(np.int64) for phase, name in times.items()},
        memory_batches=batches[is_measured],
        peak_bytes=peak[is_measured].astype(np.int64),
        persistent_bytes=persistent[is_measured].astype(np.int64),
        out_of_memory_batch=int(batches[count]) if count < len(batches) else None,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", type=Path, help="gpemu_times.csv.gz")
    parser.add_argument("--commit", required=True, help="commit of the study's repository that has the rows")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files go")
    given = parser.parse_args()
    build(given.rows, given.commit, given.folder)

"""Writes replayer/tensor/planning/cuda_dtypes.json: the dtypes that PyTorch's CUDA kernels do not have.

    python benchmarks/gpu_rules.py ask gpu.json.gz     # on a machine with a GPU
    python -m tests.cuda.dtypes gpu.json.gz            # anywhere; needs the package expecttest

The answers name the op that raised `"KERNEL" not implemented for 'DTYPE'`. A dtype is left out if the same operator accepted it
in another call with elements, because then the kernel depends on other arguments. Ops of `_BY_ARGUMENTS` are left out for the
same reason.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_rules import REFUSED_BY, database, load, name_of, samples_of
from replayer.tensor.planning.cuda_dtypes import TABLE
from traces.names.collectives import SCALAR_TYPES

_REFUSED = re.compile(r"^NotImplementedError: \"([^\"]+)\" not implemented for '(\w+)'")
_BY_ARGUMENTS = ("convolution.default", "scatter_reduce.two", "scatter.reduce", "index_reduce.default")
_ACCEPTED = re.compile(r"^forward (\w+) (\d+)$")


def refusals(answers: dict[str, dict[str, str]], full: set[int]) -> Iterator[tuple[str, str, str]]:
    """Yield (op, kernel, scalar type) for one operator of the database. `full` lists its samples in which all tensors have
    elements."""
    calls = {call: answer for step in answers.values() for call, answer in step.items()}
    accepted = {
        found[1]
        for call, answer in calls.items()
        if answer.startswith("ok") and (found := _ACCEPTED.match(call)) and int(found[2]) in full
    }
    for call, answer in calls.items():
        op, _, dtype = calls.get(call + REFUSED_BY, "").partition(" ")
        refused = _REFUSED.match(answer)
        if refused and SCALAR_TYPES.get(refused[2]) == dtype and dtype not in accepted:
            name, _, overload = op.rpartition(".")
            yield f"{name.removesuffix('_')}.{overload}", refused[1], refused[2]


def table(found: Iterator[tuple[str, str, str]]) -> dict[str, dict[str, list[str]]]:
    by_op: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for op, kernel, scalar in found:
        if op not in _BY_ARGUMENTS and not any(scalar in scalars for scalars in by_op[op].values()):
            by_op[op][kernel].add(scalar)
    return {op: {kernel: sorted(names) for kernel, names in sorted(kernels.items())} for op, kernels in sorted(by_op.items())}


def _full_samples(op: Any) -> set[int]:
    tensors = [[leaf for leaf in sample.leaves if isinstance(leaf, torch.Tensor)] for sample in samples_of(op)]
    return {k for k, leaves in enumerate(tensors) if all(leaf.numel() for leaf in leaves)}


def main(file: Path) -> None:
    answers = load(file)["answers"]
    ops = {name_of(op): op for op in database()}
    asked = {name: steps for name, steps in answers.items() if any(" not implemented" in str(step) for step in steps.values())}
    found = table(row for name, steps in asked.items() for row in refusals(steps, _full_samples(ops[name])))
    lines = [f" {json.dumps(op)}: {json.dumps(kernels)}" for op, kernels in found.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

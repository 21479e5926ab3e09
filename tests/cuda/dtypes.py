# mypy: allow-untyped-calls
"""Updates "measured" in replayer/tensor/planning/cuda_dtypes.json, which lists the dtypes that CUDA kernels of a real GPU lack.

    here=benchmarks/recordings      # needs the package expecttest
    python -m tests.cuda.dtypes $here/h200/op_dtypes.json.gz $here/h100/gpu_rules.json.gz

A sample of the OpInfo database is used if it runs one op with elements. If the op has a text argument, such as
`reduce="amax"`, the table has an entry for each text. If two samples that run the same op disagree, the dtype is left out. The
first file contains results only for the first sample of each operator. The second file contains results for ops that no first
sample runs.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import gpu_rules
from benchmarks.gpu_rules import Sample, database, name_of, samples_of
from benchmarks.op_dtypes import NO_SAMPLE, load
from replayer.tensor.planning.cuda_dtypes import TABLE, op_name
from traces.names.dtypes import SCALAR_TYPES

Table = dict[str, dict[str, list[str]]]  # maps an op and a kernel to dtypes
_REFUSED = re.compile(r"^NotImplementedError: \"([^\"]+)\" not implemented for '(\w+)'")
_HELPERS = re.compile(r"detach|clone|_to_copy|lift_fresh|alias|contiguous|empty|zeros|ones|arange|scalar_tensor")
_ONE_ELEMENT = ("linalg_vector_norm.default",)  # the first sample has one element, for which CUDA has another kernel
_SCALARS = {dtype: scalar for scalar, dtype in SCALAR_TYPES.items()}


class _Ops(TorchDispatchMode):
    """Collects (op, dtype of its first tensor, whether all tensors have elements) for the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.dtype | None, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = [*args, *(kwargs or {}).values()]
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        if not func.is_view and not _HELPERS.match(func._schema.name.removeprefix("aten::")):
            text = next((f" {value}" for value in values if isinstance(value, str)), "")
            dtype = tensors[0].dtype if tensors else (kwargs or {}).get("dtype")
            self.seen.append((op_name(func) + text, dtype, all(tensor.numel() for tensor in tensors)))
        return func(*args, **(kwargs or {}))


def single_op(op: Any, sample: Sample, *, empty: bool = False) -> str:
    """Return the one op that a sample runs in its own dtype, or "". If `empty` is true, one tensor of the sample has no
    elements."""
    try:
        leaves = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in sample.leaves]
        with _Ops() as ops:
            sample.call(op.op or op.inplace_variant, leaves)
    except Exception:  # The database has operators and samples that the CPU does not run.
        return ""
    return ops.seen[0][0] if len(ops.seen) == 1 and ops.seen[0][1:] == (sample.made_in, not empty) else ""


def samples() -> dict[str, tuple[Any, Sample]]:
    """Return the samples that both benchmarks use, by name. For example, "add 1" is the second sample of `add`."""
    found: dict[str, tuple[Any, Sample]] = {}
    for op in database():
        with suppress(Exception):  # The database has operators without samples.
            found.update({f"{name_of(op)} {k}": (op, sample) for k, sample in enumerate(samples_of(op))})
    return found


def forward_answers(answers: dict[str, Any]) -> dict[str, str]:
    """Return the answers of gpu_rules.py about dtypes, by names such as "add 1|float16"."""
    found = {}
    for operator, steps in answers.items():
        for call, answer in steps.get("dtypes", {}).items():
            if call.startswith("forward ") and not call.endswith(gpu_rules.REFUSED_BY) and not answer.startswith("died"):
                _, dtype, k = call.split()
                found[f"{operator} {k}|{dtype}"] = answer
    return found


def add(table: Table, more: Table) -> None:
    """Add to `table` the ops and dtypes for which it has no answer."""
    for name, kernels in more.items():
        known = table.setdefault(name, {"": [each for names in kernels.values() for each in names]})
        open_names = set(known.pop("", ()))
        for kernel, names in kernels.items():
            if kernel and (added := open_names.intersection(names)):
                known[kernel] = sorted({*known.get(kernel, ()), *added})
                open_names -= added
        if open_names:
            known[""] = sorted(open_names)


def measured(answers: dict[str, str], single: dict[str, str]) -> Table:
    """Return the dtypes that the kernels of each op lack. The argument `single` contains the op that each operator runs. The
    entry for the kernel "" contains dtypes that were rejected with another error or not measured."""
    refused: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    accepted: dict[str, set[str]] = defaultdict(set)
    for call, answer in answers.items():
        operator, _, dtype = call.partition("|")
        name, found = single.get(operator, ""), _REFUSED.match(answer)
        if name in _ONE_ELEMENT:
            continue
        if name and answer.startswith("ok"):
            accepted[name].add(_SCALARS[dtype])
        elif name and not answer.startswith(NO_SAMPLE):
            by_kernel = found is not None and SCALAR_TYPES.get(found[2]) == dtype
            refused[name][_SCALARS[dtype]].add(found[1] if found and by_kernel else "")
    table: Table = {}
    asked = {_SCALARS[call.partition("|")[2]] for call in answers}
    for name in sorted(accepted):
        kernels: dict[str, list[str]] = defaultdict(list)
        for scalar in asked - accepted[name] - refused[name].keys():
            refused[name][scalar].add("")  # PyTorch could not make the sample.
        for scalar, names in sorted(refused[name].items()):
            if scalar not in accepted[name]:
                kernels[min(names)].append(scalar)
        table[name] = dict(sorted(kernels.items()))
    return table


def main(first: Path, second: Path) -> None:
    every = samples()
    full = {name: single_op(op, sample) for name, (op, sample) in every.items()}
    empty = {name: single_op(op, sample, empty=True) for name, (op, sample) in every.items() if sample.tensors()}
    found = measured({re.sub(r"\.?\|", " 0|", call): answer for call, answer in load(first).items()}, full)
    answers = forward_answers(gpu_rules.load(second)["answers"])
    add(found, measured(answers, {name: full[name] for name in empty}))
    of_empty = measured(answers, empty)
    refused = {name for name, kernels in of_empty.items() if any(kernels)}
    add(found, {name: of_empty[name] for name in refused})
    table = {**json.loads(TABLE.read_text(encoding="utf-8")), "measured": found}
    table["refused_if_empty"] = sorted({*table["refused_if_empty"], *refused})
    for op in found.keys() & table["simulated"].keys():  # The simulated device answers for the remaining dtypes.
        table["simulated"][op] = {
            kernel: kept
            for kernel, names in table["simulated"][op].items()
            if (kept := [name for name in names if name in found[op].get("", ())])
        }
    table["simulated"] = {op: kernels for op, kernels in table["simulated"].items() if kernels}
    TABLE.write_text(text_of(table), encoding="utf-8")


def text_of(table: dict[str, Any]) -> str:
    """Return the table as JSON with one op per line."""
    parts = []
    for name, ops in table.items():
        if isinstance(ops, dict):
            lines = ",\n".join(f"  {json.dumps(op)}: {json.dumps(kernels)}" for op, kernels in sorted(ops.items()))
            parts.append(f' "{name}": {{\n{lines}\n }}')
        else:
            parts.append(f' "{name}": {json.dumps(ops)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

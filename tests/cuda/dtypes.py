# mypy: allow-untyped-calls, ignore-errors
"""Writes replayer/tensor/planning/cuda_dtypes.json: the dtypes that PyTorch's CUDA kernels do not have.

    .venv-cuda/bin/python -m tests.cuda.dtypes

Each op of the OpInfo database runs on the simulated device in each dtype that the database does not list for CUDA. The table
has the op that raised `"KERNEL" not implemented for 'DTYPE'`, its kernel, and the dtypes. Some ops crash on the simulated
device, which lacks parts of cuSOLVER. The script goes on with the next op in a new process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import types
import unittest
import warnings
from collections import defaultdict
from itertools import product
from pathlib import Path

import torch
from torch.testing._internal.common_dtype import all_types_and_complex_and
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from replayer.tensor.planning.cuda_dtypes import TABLE, op_name, scalar_type

_REFUSED = re.compile(r'^"(\w+)" not implemented for \'(\w+)\'')
_RARE = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2)
_DTYPES = all_types_and_complex_and(torch.float16, torch.bfloat16, torch.bool, *_RARE)
_WITH_DEVICE = Path(__file__).parent / "with_device"
_SAMPLES = 3  # of each op; they call different overloads
_BY_REDUCTION = ("scatter_reduce.two", "index_reduce.default")  # The dtypes depend on the reduction.
_SKIPPED = ("_refs", "_prims", "sparse", "masked", "jiterator")


class _LastOp(TorchDispatchMode):
    """Keeps the name of the last op and the dtype of its first tensor."""

    found = ("", None)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        self.found = op_name(func), tensors[0].dtype if tensors else None
        return func(*args, **(kwargs or {}))


def _cast(tensor, dtype, made_in):
    """Return the tensor on the device, in another dtype if the sample was made in its dtype."""
    numbers = tensor.detach()
    return (numbers.float().abs().clamp(0, 3).to(dtype) if tensor.dtype == made_in else numbers).cuda()


def write_refusals(out: Path, first: int) -> None:
    """Append one line per op and dtype to `out`: the op's number, or what was refused."""
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # torch's harness imports it
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    with open(out, "a", encoding="utf-8") as file:
        for number, op in enumerate(op_db[first:], start=first):
            print(json.dumps({"number": number}), file=file, flush=True)
            if op.name.startswith(_SKIPPED):
                continue
            known = op.supported_dtypes("cpu")
            made_in = torch.float32 if torch.float32 in known else min(known, key=str)
            samples = list(op.sample_inputs("cpu", made_in))[:_SAMPLES]
            for dtype, sample in product({*_DTYPES} - op.supported_dtypes("cuda"), samples):
                mode = _LastOp()
                try:
                    whole = (sample.input, sample.args, sample.kwargs)
                    given = tree_map_only(torch.Tensor, lambda x, to=dtype, of=made_in: _cast(x, to, of), whole)
                    with mode:
                        op.op(given[0], *given[1], **given[2])
                except Exception as error:
                    refused = _REFUSED.match(str(error))
                    if refused and refused[2] == scalar_type(mode.found[1]):
                        of = {"op": mode.found[0], "kernel": refused[1], "dtype": refused[2]}
                        print(json.dumps(of), file=file, flush=True)


def table(rows: list[dict[str, str]]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        if row["op"] not in _BY_REDUCTION:
            found[row["op"]][row["kernel"]].add(row["dtype"])
    return {op: {kernel: sorted(names) for kernel, names in sorted(kernels.items())} for op, kernels in sorted(found.items())}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out, first = Path(folder) / "refusals.jsonl", 0
        command = [_WITH_DEVICE, sys.executable, "-m", "tests.cuda.dtypes", out]
        while subprocess.run([*map(str, command), str(first)], stderr=subprocess.DEVNULL).returncode:
            rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
            first = 1 + max(row["number"] for row in rows if "number" in row)
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    lines = [f" {json.dumps(op)}: {json.dumps(kernels)}" for op, kernels in table([r for r in rows if "op" in r]).items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_refusals(Path(sys.argv[1]), int(sys.argv[2])) if sys.argv[1:] else main()

# mypy: allow-untyped-calls
"""Compares the dtypes that the virtual GPU accepts with the results of a real GPU.

    python benchmarks/op_dtypes.py h200 benchmarks/recordings/h200/op_dtypes.json.gz --differences differences.txt

For each operator in PyTorch's OpInfo database and each of 18 dtypes, the file contains "ok", or the type and first line of the
error. Each operator was called with its first sample. Results that begin with "S" are errors while the sample was created, and
are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.utils._pytree import tree_flatten

import trace_replay
from benchmarks.gpu_rules import Sample, samples_of

NO_SAMPLE = "S "
TEXT_LENGTH = 160  # maximum length of an error in the file


def load(file: Path) -> dict[str, str]:
    """Return the results by operator and dtype, with keys such as "add.|float16"."""
    found: dict[str, str] = json.loads(gzip.decompress(file.read_bytes()))
    return found


def first_sample(op: Any, dtype: torch.dtype) -> Sample:
    """Return the operator's first sample with the given dtype. If PyTorch cannot create a sample with this dtype, a sample with
    another dtype is converted."""
    torch.manual_seed(0)
    random.seed(0)
    try:
        made = next(iter(op.sample_inputs("cuda", dtype)))
    except Exception:
        other = samples_of(op)[0]
        return Sample(other.on_gpu(dtype), other.spec, dtype)
    leaves, spec = tree_flatten((made.input, tuple(made.args), dict(made.kwargs)))
    return Sample(leaves, spec, dtype)


def answer(op: Any, name: str) -> str:
    """Call an operator on the virtual GPU with its first sample of a dtype."""
    dtype = getattr(torch, name)
    sample = first_sample(op, dtype)
    try:
        sample.call(op.op, sample.leaves)
        torch.cuda.synchronize()
        return "ok"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:TEXT_LENGTH]}"


def kind_of(real: str, virtual: str) -> str:
    if virtual == real:
        return "same answer"
    if virtual == "ok":
        return "accepted only by the virtual GPU"
    return "another error" if real != "ok" else "rejected only by the virtual GPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpu")
    parser.add_argument("answers", type=Path)
    parser.add_argument("--values", default="compute", help="values of the virtual GPU: compute, recorded or constant")
    parser.add_argument("--only", default="", metavar="REGEX", help="only operators with matching names")
    parser.add_argument("--differences", type=Path, help="write the different answers to this file")
    args = parser.parse_args()
    real = load(args.answers)
    warnings.simplefilter("ignore")
    trace_replay.start(args.gpu, values=args.values, clock="virtual")
    # Import OpInfo on the virtual GPU, because `torch.cuda.jiterator` checks for a GPU when a function is defined.
    from torch.testing._internal.common_methods_invocations import op_db

    ops: dict[str, Any] = {f"{op.name}.{op.variant_test_name}": op for op in op_db}
    counts: Counter[tuple[str, str]] = Counter()
    different: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for call, of_gpu in real.items():
        op, _, dtype = call.partition("|")
        if of_gpu.startswith(NO_SAMPLE) or op not in ops or not re.match(args.only, op):
            continue
        of_virtual = answer(ops[op], dtype)
        kind = kind_of(of_gpu, of_virtual)
        counts["accepted" if of_gpu == "ok" else "rejected", kind] += 1
        if kind != "same answer":
            different[kind, of_gpu, of_virtual].append(call)
    for (by_gpu, kind), number in sorted(counts.items()):
        print(f"{by_gpu} by the real GPU, {kind}: {number}")
    if args.differences:
        lines = [
            f"{kind} ({len(calls)}): {'; '.join(calls)}\n    real:    {of_gpu}\n    virtual: {of_virtual}"
            for (kind, of_gpu, of_virtual), calls in sorted(different.items(), key=lambda item: (item[0][0], -len(item[1])))
        ]
        args.differences.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

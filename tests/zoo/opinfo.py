# mypy: allow-untyped-calls, ignore-errors
"""Runs PyTorch's OpInfo database on the virtual GPU and on the CPU of the same process, with computed values.

    trace replay --values compute --trace T tests/zoo/opinfo.py RESULTS.jsonl SLICE SLICES

A line of RESULTS gives an op, a dtype and what differed: forward, gradient, or the error of a wrong input. An op that the CPU
cannot run in a dtype is left out.
"""

from __future__ import annotations

import json
import re
import sys
import warnings

import torch
from torch.utils._pytree import tree_leaves

from tests.zoo.comparing import CLOSE, differs, on  # isort: split

from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 2
INDEXED = re.compile(r"gather|scatter|index|take|embedding|put|nll_loss|cross_entropy|one_hot")
WORDS = re.compile(r"\b[Ll]azy|Lazy\w*Type|\bmeta\b|\bMeta\b")


def _result(op, sample, device, gradient):
    given, args, kwargs = (on(device, value) for value in (sample.input, tuple(sample.args), dict(sample.kwargs)))
    leaves = [x for x in tree_leaves((given, args, kwargs)) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    if gradient:
        for leaf in leaves:
            leaf.requires_grad_()
    torch.manual_seed(0)
    results = [x for x in tree_leaves(op.op(given, *args, **kwargs)) if isinstance(x, torch.Tensor)]
    if gradient:
        needing = [x for x in results if x.requires_grad]
        if needing:
            sum(x.abs().sum() if x.is_complex() else x.sum() for x in needing).backward()
        results += [leaf.grad for leaf in leaves if leaf.grad is not None]
    return [x.detach().cpu() for x in results]


def _outcome(op, dtype):
    """Return the difference between the virtual GPU and the CPU. Return None if the CPU cannot run the op."""
    gradient = op.supports_autograd and dtype is torch.float32
    samples = []
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        samples.append(sample)
        if len(samples) == SAMPLES:
            break
    compared = False
    for sample in samples:
        try:
            first, there = _result(op, sample, "cpu", gradient), _result(op, sample, "cpu", gradient)
            torch.manual_seed(1)
            if differs(first, there, CLOSE[dtype]):
                continue
        except Exception:
            continue
        compared = True
        try:
            wrong = differs(_result(op, sample, "cuda", gradient), there, CLOSE[dtype])
        except Exception as error:
            if "not implemented for" in str(error) and dtype not in op.supported_dtypes("cuda"):
                return ""  # A GPU rejects this dtype, too.
            wrong = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        if wrong:
            return wrong
    return "" if compared else None


def _internal_words(op):
    """Return the first error message with a word that only the virtual GPU uses, such as "lazy" or "meta"."""
    try:
        wrong_inputs = list(op.error_inputs("cuda")) if op.error_inputs_func is not None else []
    except Exception:
        return ""
    for wrong in wrong_inputs:
        sample = wrong.sample_input
        try:
            op.op(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:
            if WORDS.search(str(error)):
                return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return ""


def main(results, at, slices):
    warnings.simplefilter("ignore")
    ops = [op for op in op_db[int(at) :: int(slices)] if not op.name.startswith(("_refs", "_prims"))]
    with open(results, "w", encoding="utf-8") as file:
        for op in ops:
            for dtype in CLOSE:
                wrong = _outcome(op, dtype) if dtype in op.supported_dtypes("cpu") else None
                if wrong is not None:
                    random = wrong == "values" and any("seeded" in str(tag) for tag in _tags(op))
                    _write(file, op, str(dtype).removeprefix("torch."), "" if random else wrong)
        for op in ops:
            if not INDEXED.search(op.name):  # After a failed assertion of a kernel, all CUDA calls fail.
                _write(file, op, "errors", _internal_words(op))


def _write(file, op, dtype, wrong):
    name = f"{op.name}.{op.variant_test_name}".rstrip(".")
    print(json.dumps({"op": name, "dtype": dtype, "wrong": wrong}), file=file, flush=True)


def _tags(op):
    packet = getattr(torch.ops.aten, op.name.rpartition(".")[2], None)
    return [tag for name in packet.overloads() for tag in getattr(packet, name).tags] if packet is not None else []


if __name__ == "__main__":
    main(*sys.argv[1:])

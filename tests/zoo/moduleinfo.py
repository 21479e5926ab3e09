# mypy: allow-untyped-calls, ignore-errors
"""Runs PyTorch's ModuleInfo database on the virtual GPU and on the CPU of the same process, with computed values.

    trace replay --values compute --trace T tests/zoo/moduleinfo.py RESULTS.jsonl SLICE SLICES

A line of RESULTS gives a module, a dtype, a mode, the number of inputs and what differed: a result, a gradient, a reloaded
module's result, or the error of a wrong input. Inputs that the CPU cannot run in a dtype are left out.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
import warnings
from copy import deepcopy

import torch
from torch.utils._pytree import tree_leaves

from tests.zoo.comparing import CLOSE, differs, on  # isort: split

from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

SAMPLES = 8


def _module(info, sample, dtype, training, device):
    torch.manual_seed(0)
    arguments = sample.constructor_input
    module = info.module_cls(*arguments.args, **arguments.kwargs).to(dtype).train(training)
    if info.is_lazy:  # The first forward pass initializes the weights.
        module(*sample.forward_input.args, **sample.forward_input.kwargs)
    return module.to(device)


def _result(module, sample, device):
    args, kwargs = on(device, (tuple(sample.forward_input.args), dict(sample.forward_input.kwargs)))
    leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    torch.manual_seed(0)
    results = [x for x in tree_leaves(module(*args, **kwargs)) if isinstance(x, torch.Tensor)]
    if module.training and results[0].requires_grad:  # In evaluation mode, cuDNN has no backward pass.
        sum(x.sum() for x in results if x.requires_grad).backward()
    results += [x.grad for x in (*leaves, *module.parameters()) if x.grad is not None]
    if any(x.device.type != device for x in results):
        raise AssertionError("a result is on another device")
    return [x.detach().cpu() for x in results]


def _reloaded(module):
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    return torch.load(saved, weights_only=False)


def _outcome(info, sample, dtype, training):
    """Return the difference between the virtual GPU and the CPU. Return None if the CPU cannot run the module or draws random
    numbers."""
    try:
        cpu = _module(info, sample, dtype, training, "cpu")
        again = deepcopy(cpu)
        there = _result(cpu, sample, "cpu")
        torch.rand(1)
        if differs(_result(again, sample, "cpu"), there, CLOSE[dtype]):
            return None
    except Exception:
        return None
    try:
        gpu = _module(info, sample, dtype, training, "cuda")
        results = [_result(module, sample, "cuda") for module in [gpu, _reloaded(gpu)]]
        torch.cuda.synchronize()
        return next(filter(None, (differs(result, there, CLOSE[dtype]) for result in results)), "")
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def _wrong_input(info, wrong):
    """Return how the error for a wrong input differs from the error in the database, or ""."""
    sample = wrong.module_error_input
    try:
        arguments = sample.constructor_input
        module = info.module_cls(*arguments.args, **arguments.kwargs).to("cuda")
        if wrong.error_on is ModuleErrorEnum.FORWARD_ERROR:
            module(*on("cuda", tuple(sample.forward_input.args)), **on("cuda", dict(sample.forward_input.kwargs)))
    except Exception as error:
        matches = isinstance(error, wrong.error_type) and re.search(wrong.error_regex, str(error))
        return "" if matches else f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return f"no error, expected {wrong.error_regex}"


def main(results, at, slices):
    warnings.simplefilter("ignore")
    with open(results, "w", encoding="utf-8") as file:
        for info in module_db[int(at) :: int(slices)]:
            for dtype in CLOSE:
                for training in (True, False):
                    given = {"device": "cpu", "dtype": dtype, "requires_grad": False, "training": training}
                    try:
                        samples = info.module_inputs_func(info, **given)
                    except Exception:  # The database's own functions do not support all dtypes.
                        continue
                    some = samples[:: math.ceil(len(samples) / SAMPLES)]
                    outcomes = [_outcome(info, sample, dtype, training) for sample in some]
                    kind = f"{str(dtype).removeprefix('torch.')} {'train' if training else 'eval'}"
                    _write(file, info, kind, [each for each in outcomes if each is not None])
            if info.module_error_inputs_func is not None:
                given = {"device": "cuda", "dtype": torch.float32, "requires_grad": False, "training": True}
                wrong_inputs = info.module_error_inputs_func(info, **given)
                _write(file, info, "errors", [_wrong_input(info, each) for each in wrong_inputs])


def _write(file, info, kind, outcomes):
    print(json.dumps({"module": info.name, "kind": kind, "wrong": outcomes}), file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

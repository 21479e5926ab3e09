"""Runs groups of operations on the virtual GPU, and compares the results with the CPU in the same process.

    trace replay --values compute --trace T tests/zoo/run.py RESULTS.jsonl compute [linalg] [linalg.solve]

One line of RESULTS names a group when it starts, and another line gives its result, so the file shows which group ended the
process. Groups that are already in RESULTS are skipped. If no names are given, all groups run.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from tests.zoo.groups import Group, all_groups


def difference(here: Any, there: Any, close: float | None, path: str = "") -> str:
    """Return the difference between the results of the virtual GPU and the CPU, or "" if they are equal. If `close` is None,
    values are not compared."""
    if isinstance(there, torch.Tensor):
        if not isinstance(here, torch.Tensor):
            return f"{path}: {type(here).__name__} for a tensor"
        facts = [(x.layout, x.dtype, tuple(x.shape) if not x.is_nested else x.dim(), x.requires_grad) for x in (here, there)]
        if facts[0] != facts[1]:
            return f"{path}: {facts[0]} for {facts[1]}"
        if close is None or there.is_nested:
            return ""
        return "" if _equal(here, there, close) else f"{path}: {_short(here)} for {_short(there)}"
    if isinstance(there, dict):
        if list(here) != list(there):
            return f"{path}: {list(here)} for {list(there)}"
        return next(filter(None, (difference(here[key], there[key], close, f"{path}.{key}") for key in there)), "")
    if isinstance(there, (list, tuple)):
        if len(here) != len(there):
            return f"{path}: {len(here)} for {len(there)}"
        pairs = enumerate(zip(here, there, strict=True))
        return next(filter(None, (difference(a, b, close, f"{path}[{i}]") for i, (a, b) in pairs)), "")
    if isinstance(there, float) and close is not None:
        same = torch.allclose(torch.tensor(here), torch.tensor(there), close, close, equal_nan=True)
        return "" if same else f"{path}: {here} for {there}"
    if type(here) is not type(there) or (here != there and close is not None):
        return f"{path}: {here!r} for {there!r}"
    return ""


def _equal(here: Any, there: Any, close: float) -> bool:
    a, b = (x.detach().cpu().as_subclass(torch.Tensor) for x in (here, there))
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.is_quantized:
        a, b = a.dequantize(), b.dequantize()
    a, b = (x.to(torch.complex128 if x.is_complex() else torch.float64) for x in (a.resolve_conj(), b.resolve_conj()))
    return torch.allclose(a, b, close, close, equal_nan=True)


def _short(tensor: Any) -> str:
    return str(tensor.detach().flatten()[:4].tolist())


def outcome(group: Group, values: str) -> str:
    """Return what is wrong with the results of a group, or "" if they are right."""
    try:
        torch.manual_seed(0)
        here = group.run("cuda")
        if group.sentence:
            return "it is not refused"
        torch.manual_seed(0)
        there = group.run("cpu")
        return difference(here, there, group.close if values == "compute" else None)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if group.sentence and str(error).startswith(group.sentence):
            return ""
        frames = traceback.extract_tb(error.__traceback__)
        shown = [frame for frame in frames if "families" in frame.filename or frame is frames[-1]]
        lines = [f"{frame.name}:{frame.lineno} {frame.line}" for frame in shown]
        return " | ".join([text[:600], *lines])


def main() -> None:
    results, values, *names = Path(sys.argv[1]), sys.argv[2], *sys.argv[3:]
    warnings.simplefilter("ignore")
    found = {json.loads(line)["group"] for line in results.read_text().splitlines()} if results.exists() else set()
    with results.open("a") as out:
        for name, group in all_groups().items():
            if name in found or values not in group.values or (names and not {name, name.partition(".")[0]} & set(names)):
                continue
            if group.needs and importlib.util.find_spec(group.needs) is None:
                continue
            print(json.dumps({"group": name}), file=out, flush=True)
            print(json.dumps({"group": name, "wrong": outcome(group, values)}), file=out, flush=True)


if __name__ == "__main__":
    main()

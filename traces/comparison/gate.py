"""Checks a comparison of two traces against limits (budgets) from a TOML file, for continuous integration.

    budgets = read_budgets(Path("budgets.toml"))
    result = check(budgets, comparison)
    result.passed, result.checks[0]     # False, Check("step_time", budget=180_000_000, value=184_200_000, passed=False)

    [budget]
    step_time = "180 ms"        # highest allowed step time of the second trace (traces/figures/pace.py)
    step_time_change = "5 %"    # highest allowed increase of the step time over the first trace
    compute_time = "110 ms"     # step time without data loading; also compute_time_change
    gpu_busy = "100 ms"         # GPU time of a step; also gpu_busy_change
    memory_peak = "14 GiB"      # the highest memory peak of any device; also memory_peak_change
    missing_ops = 0             # kinds of calls in the compared steps of a replay that are not in its recording
    matched = "99 %"            # lowest allowed share of a replay's GPU time that comes from the same op in the recording
    same_program = true         # both traces must be of the same program
    graph_breaks = 2            # graph breaks of torch.compile in the second trace, and functions that ran eagerly
    recompiles = 0              # recompilations in the second trace

If the traces do not contain a checked value, such as the peak memory, the check fails.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from traces.comparison.comparison_figures import Comparison
from traces.comparison.thresholds import GATE_MEMORY_MARGIN_PERCENT, LEAST_GATE_MARGIN_PERCENT
from traces.compiled.region_figures import CompiledFigures
from traces.figures.summary import Summary
from traces.model.trace import TraceError
from traces.names import did_you_mean

_TIMES = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_SIZES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SHARES = {"%": 0.01}
_UNITS: dict[str, Mapping[str, float]] = {
    "step_time": _TIMES,
    "compute_time": _TIMES,
    "gpu_busy": _TIMES,
    "memory_peak": _SIZES,
    "matched": _SHARES,
}
_CHANGES = tuple(f"{name}_change" for name in _UNITS if name != "matched")
_COUNTS = ("missing_ops", "graph_breaks", "recompiles")
KEYS = (*_UNITS, *_CHANGES, *_COUNTS, "same_program")


class GateError(TraceError):
    """Raised if the budget file of `trace diff --gate` is invalid."""


@dataclass(frozen=True, slots=True)
class Check:
    """Compares one value, such as the step time, with its budget. Times are in ns and sizes in bytes."""

    name: str  # name of the budget
    budget: float  # the limit
    value: float | None  # the compared value; None if the value is missing
    passed: bool  # True if the value is within the limit


@dataclass(frozen=True, slots=True)
class GateResult:
    passed: bool  # True if all budgets are met
    checks: list[Check]


def read_budgets(path: Path) -> dict[str, float]:
    """Read a budget file. Raises GateError if the file is missing or invalid."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise GateError(f"{path}: no such file; run `trace gate init RECORDING -o {path}`") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GateError(f"{path}: not TOML: {error}") from None
    table = document.get("budget")
    if not isinstance(table, dict) or not table or document.keys() - {"budget"}:
        raise GateError(f"{path} must contain one table `[budget]` with some of the keys {', '.join(KEYS)}")
    return {key: _budget(path, key, value) for key, value in table.items()}


def starting_budgets(of: Summary) -> dict[str, str]:
    """Suggest limits (budgets) for later replays of a recording, as TOML values. For example, a step may take up to 3 % longer
    than in the recording, or more if the recorded steps vary."""
    budgets = {}
    if of.step_median_ns is not None:
        noise = of.pace.noise if of.pace is not None and of.pace.noise is not None else 0.0
        budgets["step_time_change"] = f'"{max(LEAST_GATE_MARGIN_PERCENT, math.ceil(200 * noise))} %"'
    peaks = [peak.peak_allocated_bytes for peak in of.memory.values() if peak.peak_allocated_bytes is not None]
    if peaks:
        budgets["memory_peak_change"] = f'"{GATE_MEMORY_MARGIN_PERCENT} %"'
    if of.grain == "kernel":
        budgets["missing_ops"] = "0"
        budgets["matched"] = '"99 %"'
    budgets["same_program"] = "true"
    return budgets


def check(budgets: Mapping[str, float], comparison: Comparison) -> GateResult:
    values = _figures(comparison)
    checks = []
    for name, budget in budgets.items():
        value = values[name]
        at_least = name in ("matched", "same_program")
        passed = value is not None and (value >= budget if at_least else value <= budget)
        checks.append(Check(name, budget, value, passed))
    return GateResult(all(of.passed for of in checks), checks)


def _figures(of: Comparison) -> dict[str, float | None]:
    devices = of.memory.values()
    peak_bytes = _most(m.replayed_run_peak_bytes for m in devices)
    before_bytes, after_bytes = (_most(m.compared_bytes[side] for m in devices) for side in (0, 1))
    both: dict[str, tuple[float | None, float | None]] = {
        "step_time": (of.steps.recorded_ns, None if of.work_is_hidden.replayed else of.steps.replayed_ns),
        "compute_time": (of.compute_side.recorded_ns, None if of.work_is_hidden.replayed else of.compute_side.replayed_ns),
        "gpu_busy": (of.gpu_busy.recorded_ns, of.gpu_busy.replayed_ns),
        "memory_peak": (before_bytes, after_bytes),
    }
    found: dict[str, float | None] = {name: after for name, (_, after) in both.items()}
    for name, (before, after) in both.items():
        found[f"{name}_change"] = after / before - 1 if before and after is not None else None
    found["memory_peak"] = peak_bytes
    found["missing_ops"] = len(of.missing_in_steps)
    found["matched"] = None if of.coverage is None else of.coverage["exact"] + of.coverage["equivalent"]
    compiled = of.compiled.replayed if of.compiled is not None else CompiledFigures()
    # A graph break in a loop makes Dynamo run the whole function eagerly. Dynamo's own counter misses this graph break.
    breaks = compiled.graph_breaks if compiled.is_compiled else 0
    found["graph_breaks"] = None if breaks is None else breaks + len(compiled.eager)
    found["recompiles"] = compiled.recompiles
    found["same_program"] = None if of.verdict.same is None else float(of.verdict.same)
    return found


def _most(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _budget(path: Path, key: str, value: object) -> float:
    if key not in KEYS:
        hint = did_you_mean(key, KEYS, 1, 0.6, "; {}") or f": {', '.join(KEYS)}"
        raise GateError(f"{path}: unknown budget {key!r}{hint}")
    if key == "same_program" and isinstance(value, bool):
        return float(value)
    if key in _COUNTS and type(value) is int and value >= 0:
        return float(value)
    units = _SHARES if key in _CHANGES else _UNITS.get(key, {})
    given = key
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(\S+)\s*", value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in units:
        examples = [(_TIMES, '"180 ms"'), (_SIZES, '"14 GiB"'), (_SHARES, '"5 %"')]
        wanted = next((text for own, text in examples if own is units), "a whole number")
        if match is not None and match[2] in _SHARES and f"{key}_change" in _CHANGES:
            key, wanted = f"{key}_change", f'"{value}"'
        raise GateError(f"{path}: {given} = {value!r} is invalid; write {key} = {'true' if key == 'same_program' else wanted}")
    return float(match[1]) * units[match[2].lower()]

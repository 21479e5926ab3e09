"""Compares all figures of comparisons of a few recordings with readable golden files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.goldens import assert_golden, in_short
from tests.traces.crowded import crowded, mixed, without
from tests.traces.handmade import Call, calls, data_parallel, phase_grained, replay_of, training
from traces.combining.merge import merge_ranks
from traces.comparison.compare import compare
from traces.comparison.counterparts import counterparts, paired_steps
from traces.comparison.explain import explain
from traces.comparison.gate import check
from traces.kineto import read_kineto
from traces.model.trace import Trace

GOLDEN = Path(__file__).with_name("golden")
PAIRS = """
a100_particle_fwd_bs2 a100_particle_fwd_bs32
a100_switch_transformer h100_transformer_toy
"""
BUDGETS = {"step_time": 1e5, "step_time_change": 0.0, "gpu_busy": 5e4, "memory_peak": 3.0 * 2**20, "missing_ops": 1.0}


def figures(first: Trace, second: Trace) -> str:
    comparison = compare(first, second)
    pairs = paired_steps(first, second)
    found = counterparts(first, second, pairs)
    facts = {name: of for name, of in comparison.to_json().items() if name != "analyses"}
    columns = {"first": found.first, "second": found.second, "change": found.change, "change_ns": found.change_ns}
    sums = {name: [len(column), int(column.sum())] for name, column in columns.items()}
    judged = {"explanation": explain(comparison), "gate": check(BUDGETS, comparison)}
    return in_short({"comparison": facts, **judged, "pairs": pairs, "sums": sums, **columns})


@pytest.mark.parametrize("names", PAIRS.strip().splitlines())
def test_comparisons_of_real_recordings_equal_the_golden_files(names: str, shared_traces: Path) -> None:
    first, second = (read_kineto(next(shared_traces.glob(f"{name}*"))) for name in names.split())
    assert_golden(GOLDEN / f"{names.replace('.json', '').replace(' ', '-')}.txt", figures(first, second))


@pytest.mark.parametrize("name", ["replay", "kernels", "program", "phases", "stages", "itself"])
def test_comparisons_of_handmade_recordings_equal_the_golden_files(name: str) -> None:
    recorded = training(steps=6, jitter_us=(0, 3, 1))
    made = {
        "replay": replay_of(recorded, 1.1, missing=[{"op": "aten::foo", "shapes": "2,2", "count": 3}]),
        "kernels": training(steps=6, kernel_us=14, loader_us=35),
        "program": training(steps=6, batch=16, made=[*calls(32), Call("aten::mul", "8,8", 90, "elementwise_mul")]),
        "phases": phase_grained(6),
        "itself": recorded,
    }
    pair = (data_parallel(), data_parallel(8)) if name == "stages" else (recorded, made[name])
    assert_golden(GOLDEN / f"{name}.txt", figures(*pair))


@pytest.mark.parametrize(("name", "other"), [("crowded", crowded(seed=2)), ("crowded_slower", crowded(seed=1, grid_ns=11_000))])
def test_comparisons_of_recordings_with_many_equal_times_equal_the_golden_files(name: str, other: Trace) -> None:
    assert_golden(GOLDEN / f"{name}.txt", figures(crowded(seed=1), other))


@pytest.mark.parametrize("table", ["steps", "phases", "device", "memory", "collectives", "batches"])
def test_two_recordings_can_be_compared_if_one_has_no_rows_in_a_table(table: str) -> None:
    whole = crowded(seed=1)
    part = without(whole, table)
    assert_golden(GOLDEN / f"crowded_without_{table}.txt", figures(whole, part) + figures(part, whole))


def test_comparisons_of_recordings_of_two_ranks_equal_the_golden_files() -> None:
    first, second = (merge_ranks([crowded(1), crowded(2)]), merge_ranks([crowded(2), crowded(1, grid_ns=11_000)]))
    assert_golden(GOLDEN / "crowded_ranks.txt", figures(first, second))
    assert_golden(GOLDEN / "crowded_gpus.txt", figures(crowded(1), first))


def test_comparing_recordings_with_several_kinds_of_steps_gives_the_golden_result() -> None:
    assert_golden(GOLDEN / "crowded_mixed.txt", figures(mixed(1, "WSESPSSEPS"), mixed(1, "SSPESSS")))

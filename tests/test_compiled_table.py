"""Tests the table of benchmarks/compiled.py, its comparison of Dynamo's counters, and which programs it runs."""

from __future__ import annotations

from benchmarks.compiled import Row, counters_of, programs, table
from tests.traces.handmade import replay_of, training
from traces import compare


def test_the_table_of_compiled_programs_shows_gpu_time_errors_and_counts_programs() -> None:
    recorded = training()
    replays = {"faster loader": replay_of(recorded), "GPU slower": replay_of(recorded, stretch=1.5), "recording": recorded}
    rows = [Row(title, compare(recorded, replay), title == "faster loader") for title, replay in replays.items()]
    lines = table(rows).splitlines()
    # Each step has five pieces of GPU work. One of them, the copy, has a scaled time.
    assert lines[2:4] == [
        "| faster loader | -17.0 % | 0.0 % | 0.0 % | 0.0 % | 80.0 % |",
        "| GPU slower | +23.0 % | 0.0 % | +50.0 % | 0.0 % | 80.0 % |",
    ]
    text = " ".join(lines[6:])
    assert "the replay ran the same program in 3 of 3 cases" in text and "For 1 of 3 programs, Dynamo's counters" in text
    # In the replays, the loader takes 3 µs instead of 20 µs. This is more than 1 % of a step.
    assert "Correct step times: 1 of 3." in text


def test_comparing_dynamo_counters_ignores_addresses_and_empty_counters() -> None:
    recorded = 'loss\n{"counters": {"graph_break": {"<function f at 0x7ff9>": 2}, "frames": {}}}\n'
    replayed = '{"counters": {"graph_break": {"<function f at 0x12ab>": 2}}}\n'
    assert counters_of(recorded) == counters_of(replayed) == {"graph_break": {"<function f at 0x>": 2}}
    assert counters_of(replayed.replace(": 2", ": 3")) != counters_of(recorded)


def test_only_scripts_are_run_and_scripts_with_process_groups_get_two_ranks() -> None:
    found = programs()
    assert "small_gpt" not in found and "counters" not in found
    assert found["no_sync"].ranks == found["no_sync"].gpus == 2 and found["gan"].ranks == 0

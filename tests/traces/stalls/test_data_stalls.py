"""Tests which bottleneck is found from the step times of three runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from traces.model.run import REPLAY, HostFigures, ReplayNotes, Run
from traces.model.trace import StepKind, Steps, Trace, TraceError
from traces.stalls import data_stalls
from traces.stalls.data_stalls import Bottleneck, stalls_of, training_pace
from traces.stalls.storage_server import Loading

MS = 1_000_000


def run_of(step_ms: float, steps: int = 30, first_ms: float = 2000) -> Trace:
    """Return a trace whose first two steps are long, and whose other steps take `step_ms`."""
    durations = [round(first_ms * MS)] * 2 + [round(step_ms * MS)] * (steps - 2)
    starts = np.cumsum([0, *durations])[:-1]
    columns = {
        "rank": [0] * steps, "number": list(range(steps)), "start_ns": starts, "duration_ns": durations,
        "kind": [int(StepKind.STEADY)] * steps, "recorded_step": [0] * steps,
    }  # fmt: skip
    return Trace(steps=Steps.of(**columns))


def loading(cpu_ms: float, pin_ms: float = 0, missed: int = 0) -> Loading:
    pinned = {"pinned": 30, "pin_ns": round(30 * pin_ms * MS)} if pin_ms else {}
    return Loading(
        batches=30, samples=30 * 64, wall_ns=30 * round(cpu_ms * MS), cpu_ns=30 * round(cpu_ms * MS), read_bytes=30 * 6_400_000,
        missed_bytes=30 * missed, workers=2, data_set_samples=10_000, **pinned,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gpu_ms", "prepared_ms", "fetched_ms", "pin_ms", "bottleneck"),
    [
        (100, 100.5, 101, 0, Bottleneck.GPU),
        (100, 150, 151, 0, Bottleneck.PREPARATION),
        (100, 150, 151, 149, Bottleneck.PINNING),
        (100, 100, 160, 0, Bottleneck.STORAGE),
        (100, 150, 220, 0, Bottleneck.STORAGE),
        # Waits of at most 2 % of a step do not count. Pinning is the bottleneck if it takes at least 96 % of a step.
        (100, 102, 102, 0, Bottleneck.GPU),
        (100, 102.1, 102.1, 0, Bottleneck.PREPARATION),
        (50, 100, 102, 0, Bottleneck.PREPARATION),
        (50, 100, 102.1, 0, Bottleneck.STORAGE),
        (50, 100, 100, 96, Bottleneck.PINNING),
        (50, 100, 100, 95.9, Bottleneck.PREPARATION),
    ],
)
def test_the_bottleneck_is_the_last_stage_that_slows_the_pipeline(
    gpu_ms: float, prepared_ms: float, fetched_ms: float, pin_ms: float, bottleneck: Bottleneck
) -> None:
    cached = loading(2 * prepared_ms, pin_ms)
    found = stalls_of(
        run_of(gpu_ms), run_of(prepared_ms), [cached], 8, [1], run_of(fetched_ms), [loading(2 * prepared_ms, missed=4_000_000)]
    )
    assert found.bottleneck is bottleneck
    assert found.preparation_share == pytest.approx(max(1 - gpu_ms / prepared_ms, 0), abs=0.001)
    assert found.fetch_share == pytest.approx(max(1 - prepared_ms / fetched_ms, 0), abs=0.001)
    assert found.gpu.samples_per_s == pytest.approx(64 / gpu_ms * 1000, rel=0.001)
    assert found.data_set_bytes == 10_000 * 100_000


def test_loading_one_batch_gives_the_correct_figures() -> None:
    cached = replace(loading(400, pin_ms=5), pin_cpu_ns=30 * 3 * MS, wall_ns=30 * 450 * MS)
    found = stalls_of(run_of(100), run_of(200), [cached], 2, [], run_of(300), [loading(400, missed=4_000_000)])
    assert (found.batch_samples, found.step_batches, found.workers, found.taken_cores) == (64, 1, 2, 0)
    assert (found.batch_cpu_ns, found.batch_wall_ns) == (400 * MS, 450 * MS)
    assert (found.batch_pin_ns, found.batch_pin_cpu_ns) == (5 * MS, 3 * MS)
    assert (found.batch_bytes, found.batch_missed_bytes) == (6_400_000, 4_000_000)
    assert found.estimated_share == 0 and found.notes == []


def test_batches_of_a_new_epoch_continue_the_order_of_workers() -> None:
    """Each of two workers fetches ten batches in 10 ms. In the next epoch, two new workers need 20 ms. The first 8 of 40 steps
    are not counted, so the mean is (12 x 10 + 20 x 20) / 32 = 16.25 ms."""
    fetched = [Loading(batches=1, samples=64, cpu_ns=10 * MS, workers=2, process=1 + at % 2) for at in range(20)]
    fetched += [Loading(batches=1, samples=64, cpu_ns=20 * MS, workers=2, process=3 + at % 2) for at in range(20)]
    assert stalls_of(run_of(5, steps=40), run_of(20, steps=40), fetched, 2, []).batch_cpu_ns == 16_250_000


def test_a_loader_worker_that_waits_delivers_its_batches_later() -> None:
    """A batch needs 50 ms of CPU time and waits 350 ms for the network. Four workers provide one batch every 100 ms."""
    one = Loading(batches=1, samples=64, cpu_ns=50 * MS, blocked_ns=350 * MS, workers=4)
    fetches = [replace(one, process=at % 4) for at in range(40)]
    found = stalls_of(run_of(20, steps=40), run_of(100, steps=40), fetches, 4, [1])
    assert (found.batch_cpu_ns, found.batch_blocked_ns) == (50 * MS, 350 * MS)
    assert found.check is not None and found.check.samples_per_s == pytest.approx(64 / 0.100, rel=0.05)
    assert found.by_cores[0].samples_per_s == pytest.approx(64 / 0.400, rel=0.01)
    assert found.enough is not None and found.enough.workers == 20  # a batch takes 400 ms, and a step takes 20 ms


def test_stalls_finds_the_number_of_workers_and_the_disk_speed_without_waits() -> None:
    cold = [loading(400, missed=4_000_000)]
    found = stalls_of(run_of(100), run_of(200), [loading(400)], 2, [1, 2, 4, 8], run_of(300), cold)
    assert found.enough is not None and found.enough.workers == 4  # a batch needs 400 ms of work, and a step takes 100 ms
    assert [round(row.samples_per_s) for row in found.by_cores] == [160, 320, 640, 640]
    assert [row.wait_share for row in found.by_cores] == pytest.approx([0.75, 0.5, 0, 0], abs=0.001)
    assert found.disk_bytes_per_s == pytest.approx(4_000_000 / 0.1)
    assert found.check is not None and found.check.samples_per_s == pytest.approx(found.prepared.samples_per_s, rel=0.01)


@pytest.mark.program
def test_the_loader_model_uses_measured_batch_costs_and_free_cores() -> None:
    """GIVEN a slow and a fast worker WHEN other programs use one of two cores THEN the loader model uses only the free core.

    The slow worker needs 300 ms for a batch, and the fast worker needs 100 ms.
    """

    def told(machine_cores: float) -> list[Loading]:
        fetches = [Loading(batches=1, samples=64, cpu_ns=100 * MS, workers=2, process=1) for _ in range(15)]
        fetches += [Loading(batches=1, samples=64, cpu_ns=300 * MS, workers=2, process=2) for _ in range(15)]
        machine_ns = round(machine_cores * 200 * MS)
        return fetches + [Loading(script_batches=1, script_wall_ns=200 * MS, machine_cpu_ns=machine_ns) for _ in range(29)]

    alone = stalls_of(run_of(1), run_of(150), told(1.0), 2, [])
    assert alone.taken_cores == 0
    assert alone.check is not None and alone.check.samples_per_s == pytest.approx(
        64 / 0.150, rel=0.02
    )  # the loader waits for the slow worker
    beside = stalls_of(run_of(1), run_of(200), told(2.0), 2, [])
    assert beside.taken_cores == pytest.approx(1.0)
    # Two batches need 400 ms of work, which two workers do on one free core in 400 ms.
    assert beside.check is not None and beside.check.samples_per_s == pytest.approx(64 / 0.200, rel=0.03)


def test_stalls_reports_the_share_of_files_that_stayed_cached() -> None:
    cold = replace(loading(400, missed=4_000_000), dropped=4, kept=1, undetermined=2)
    found = stalls_of(run_of(100), run_of(200), [loading(400)], 2, [1], run_of(300), [cold])
    assert [note.partition(":")[0] for note in found.notes if "files" in note] == [
        "25% of the files stayed cached",
        "For 50% of the files, the file system does not report whether they are still cached.",
    ]


def test_evaluation_and_one_time_setup_are_not_counted_as_stalls() -> None:
    """GIVEN a script with slow first steps and with evaluations between training steps THEN only the training steps of 100 ms
    count."""
    kinds = [StepKind.STEADY, StepKind.STEADY, StepKind.EVALUATION] * 10
    durations = np.array([100, 100, 1000] * 10) * MS
    columns = {
        "rank": [0] * 30, "number": list(range(30)), "start_ns": np.cumsum([0, *durations])[:-1], "duration_ns": durations,
        "kind": list(map(int, kinds)), "recorded_step": [0] * 30,
    }  # fmt: skip
    told = [Loading(evaluates=9), Loading(batches=1, samples=999, cpu_ns=MS, evaluation=1)]
    for number in range(20):
        told.append(Loading(batches=1, samples=64, cpu_ns=150 * MS, workers=2, prefetch=2, process=7))
        told.append(Loading(batches=1, samples=512, cpu_ns=900 * MS, process=9))
        told.append(Loading(script_batches=1, script_cpu_ns=(2000 if number < 3 else 10) * MS))
    found = stalls_of(run_of(100), Trace(steps=Steps.of(**columns)), told, 2, [])
    assert (found.prepared.steps, found.prepared.step_ns, found.batch_samples) == (20, 100 * MS, 64)
    assert found.batch_cpu_ns == 150 * MS
    # A batch needs 150 ms of the workers and 10 ms of the script. Two cores need 80 ms for this work.
    assert found.check is not None and found.check.samples_per_s == pytest.approx(640, rel=0.01)


def test_a_larger_prefetch_factor_keeps_more_batches_ready() -> None:
    with pytest.raises(TraceError, match="train at least 21 steps"):
        training_pace(run_of(1, steps=20), 64, workers=2, prefetch=8)


@pytest.mark.parametrize(
    ("steps", "workers", "prefetch", "first"),
    [
        (30, 0, 2, 6),  # the first fifth of the steps is skipped
        (30, 4, 2, 10),  # the first batch and 8 prefetched ones are skipped, and one more, so that a multiple of 4 remains
        (9, 2, 2, 5),
        (6, 0, 2, 2),  # the first two steps are skipped
        (21, 2, 8, 17),
        (27, 5, 2, 12),  # the first batch and 10 prefetched ones are skipped, and one more, so that a multiple of 5 remains
    ],
)
def test_training_speed_excludes_prefetched_batches_and_counts_whole_rounds_of_workers(
    steps: int, workers: int, prefetch: int, first: int
) -> None:
    """GIVEN a run whose i-th step lasts i ms THEN the mean step time is halfway between the first and the last counted step."""
    trace = run_of(1, steps=steps)
    trace.steps.duration_ns[:] = np.arange(steps) * MS
    assert training_pace(trace, 64, workers, prefetch).step_ns == (first + steps - 1) * MS // 2


def test_runs_with_too_few_steps_or_no_loader_are_rejected() -> None:
    with pytest.raises(TraceError, match="train at least 9 steps"):
        training_pace(run_of(1, steps=8), 64, 2)
    with pytest.raises(TraceError, match="no DataLoader fetched a batch: the script has none, or its data set is empty"):
        stalls_of(run_of(1), run_of(1), [], 1, [])


def test_stalls_reports_that_some_file_reads_were_not_counted() -> None:
    unseen = loading(10)
    unseen.read_bytes = 0
    [note] = stalls_of(run_of(20), run_of(20), [unseen], 2, []).notes
    assert "not counted" in note


def test_stalls_reports_that_the_machine_was_busy_in_the_first_run() -> None:
    assert "this machine was busy" in "".join(stalls_of(run_of(30), run_of(20), [loading(10)], 2, []).notes)
    assert stalls_of(run_of(20.5), run_of(20), [loading(10)], 2, []).notes == []


def test_stalls_reports_the_share_of_a_step_that_is_overhead_of_this_machine() -> None:
    ready = run_of(20)
    for lag_ms, notes in ((1, []), (5, ["25% of a step at GPU speed is overhead of this machine: more workers may be"])):
        ready.runs = {0: Run(REPLAY, replay=ReplayNotes(host=HostFigures(lag_ns_per_step=lag_ms * MS)))}
        found = stalls_of(ready, run_of(20), [loading(10)], 2, []).notes
        assert [note.partition(" needed")[0] for note in found] == notes


def test_stalls_reports_that_the_machine_was_busy_in_the_second_run() -> None:
    """GIVEN cached data that loads more slowly than data from the modelled disk, and more slowly than the GPU works THEN both
    facts are reported."""
    found = stalls_of(run_of(20), run_of(30), [loading(10)], 2, [], run_of(20), [loading(10)])
    assert any(note.startswith("Loading cached data took longer than loading from the modelled disk") for note in found.notes)
    assert found.bottleneck is Bottleneck.PREPARATION and found.preparation_share > 0
    assert not any(
        "modelled disk" in note for note in stalls_of(run_of(20), run_of(30), [loading(10)], 2, [], run_of(30), []).notes
    )
    assert not stalls_of(run_of(20), run_of(20), [loading(10)], 2, []).notes


@pytest.mark.parametrize(("loaders", "workers"), [([1], 2), ([1, 2], 4)])
def test_the_loading_rate_counts_the_samples_of_all_batches_in_a_step(loaders: list[int], workers: int) -> None:
    """GIVEN steps of four batches, from one loader or two THEN the rate counts the samples of all four.

    A worker needs 100 ms for a batch, so two cores prepare the batches of a step in 200 ms.
    """
    batches = [Loading(batches=1, samples=64, cpu_ns=100 * MS, workers=2, process=at % workers) for at in range(120)]
    batches += [Loading(script_batches=1, loader=loaders[at % len(loaders)], workers=2) for at in range(119)]
    found = stalls_of(run_of(40), run_of(200), batches, 2, [8])
    assert (found.step_batches, found.workers, found.batch_samples) == (4, workers, 64)
    assert found.prepared.samples_per_s == pytest.approx(4 * 64 / 0.2)
    assert found.check is not None and found.check.samples_per_s == pytest.approx(4 * 64 / 0.2, rel=0.05)
    assert found.enough is not None and found.enough.workers == 10  # the work of 400 ms must be done in 40 ms


@pytest.mark.parametrize(("script_batches", "step_batches"), [(29, 1), (43, 1), (44, 2), (59, 2), (0, 4)])
def test_the_number_of_batches_per_step_includes_the_untimed_first_batch(
    script_batches: int, step_batches: int
) -> None:
    """GIVEN 30 steps THEN up to 44 batches are one batch per step, and 45 batches are two. If the script has no times, all 120
    fetched batches count."""
    cached = Loading(batches=120, script_batches=script_batches)
    assert data_stalls._step_batches(cached, run_of(100)) == step_batches


def test_for_each_batch_of_a_step_script_and_pinning_take_their_full_time() -> None:
    """GIVEN steps of 140 ms with two batches each THEN two workers on three cores are fast enough.

    For each batch, the script needs 70 ms, pinning needs 68 ms, and a worker needs 100 ms.
    """
    batches = [Loading(batches=1, samples=64, cpu_ns=100 * MS, workers=2, process=at % 2) for at in range(60)]
    script = Loading(script_batches=59, script_cpu_ns=59 * 70 * MS, workers=2)
    found = stalls_of(run_of(40), run_of(140), [*batches, script, Loading(pinned=60, pin_ns=60 * 68 * MS)], 3, [])
    assert found.check is not None and found.check.samples_per_s == pytest.approx(64 / 0.070)
    assert found.check.wait_share == 0 and found.bottleneck is Bottleneck.PINNING


def test_an_unfinished_epoch_is_left_out_of_the_order_of_batches() -> None:
    fetched = [Loading(batches=1, process=process) for process in (1, 2, 1, 2, 3)]
    assert [one.process for one in data_stalls._in_rounds(fetched, 2)] == [1, 2, 1, 2]


def test_storage_is_not_the_bottleneck_if_no_bytes_were_read() -> None:
    unseen = Loading(batches=30, samples=30 * 64, cpu_ns=30 * MS, wall_ns=30 * MS, workers=2)
    found = stalls_of(run_of(100), run_of(100), [unseen], 2, [], run_of(150), [unseen])
    assert (found.fetched, found.fetch_share, found.disk_bytes_per_s) == (None, None, None)
    assert found.bottleneck is Bottleneck.GPU


def test_fetches_are_simulated_in_the_order_of_the_loader() -> None:
    """GIVEN one worker with 90 fast fetches, and another worker with 30 slow fetches THEN the simulated workers alternate.

    A fast fetch takes 100 ms, and a slow fetch takes 300 ms. Each of 30 rounds loads two batches in 300 ms. The other 60 fast
    fetches are left out.
    """
    batches = [Loading(batches=1, samples=64, cpu_ns=100 * MS, workers=2, process=1) for _ in range(90)]
    batches += [Loading(batches=1, samples=64, cpu_ns=300 * MS, workers=2, process=2) for _ in range(30)]
    found = stalls_of(run_of(40), run_of(150), batches, 2, [])
    assert found.check is not None and found.check.samples_per_s == pytest.approx(2 * 64 / 0.3, rel=0.05)


def test_loaders_with_at_most_half_the_batches_of_the_largest_loader_are_ignored() -> None:
    """GIVEN loaders with 10, 5, 6 and no batches THEN only the workers of the loaders with 10 and 6 batches count."""
    loadings = [
        Loading(loader=0, workers=4, script_batches=10),
        Loading(loader=1, workers=2, script_batches=5),
        Loading(loader=2, workers=1, script_batches=6),
        Loading(loader=3, workers=8),
    ]
    assert data_stalls._workers(loadings) == 5
    assert data_stalls._workers([]) == 0


def test_cpu_use_of_other_programs_excludes_the_script_and_its_workers() -> None:
    """In 50 ns, all programs used 1000 ns of CPU time. The script used 100 ns, and each of three batches 200 ns. Other programs
    used the remaining 300 ns, which is six cores."""
    script = Loading(script_cpu_ns=100, script_batches=3, machine_cpu_ns=1000, script_wall_ns=50)
    assert data_stalls._taken(script, 200) == 6.0
    assert data_stalls._taken(replace(script, machine_cpu_ns=699), 200) == 0
    assert data_stalls._taken(replace(script, script_wall_ns=0), 200) == 300


def test_stalls_estimates_how_many_other_programs_use_the_cores() -> None:
    """GIVEN other programs that use half a core each WHEN they use 0.9 cores in total THEN 1.8 programs are estimated."""

    def run(others: float) -> Any:
        return SimpleNamespace(others_cores=others / 2, others=others)

    assert cast(Any, data_stalls._beside_others(run, 0.9)).others == pytest.approx(1.8, abs=0.01)
    # The search halves the range from 0 to 0.01 programs eight times.
    assert cast(Any, data_stalls._beside_others(run, 0.005)).others == pytest.approx(0.01 * 255 / 256)


@pytest.mark.parametrize(("stored_share", "shown"), [(0.05, ""), (0.25, "25%"), (1.5, "100%")])
def test_stalls_prints_a_note_if_the_disk_delivered_over_5_percent_of_the_data(stored_share: float, shown: str) -> None:
    """GIVEN a script that read 192 MB WHEN the disk delivered more than 5 % of the data THEN a note is printed. Read-ahead
    beyond 100 % is not shown."""
    cached = replace(loading(200), stored_bytes=round(stored_share * 192_000_000))
    notes = stalls_of(run_of(100), run_of(100), [cached], 8, []).notes
    note = f"This machine's disk delivered {shown} of the data, so not all data was cached. Run again."
    assert notes == ([note] if shown else [])

"""Tests that the files of a replay's processes become one trace, with one process per rank."""

from __future__ import annotations

from dataclasses import replace

from tests.replayer.recordings import Op, make_recording
from traces.combining.replayed_ranks import one_replay, process_of_each_rank
from traces.model.run import Run
from traces.model.trace import NONE, Device, DeviceSpans, StepKind, Trace


def as_rank(rank: int, device: int, steps: int = 1) -> Trace:
    trace = make_recording([("forward", 0, 100)], [Op("aten::mm", 5, 20, kernel=(10, 50))], steps=steps)
    trace.device.device = trace.device.device + device
    trace.phases.device = trace.phases.device * 0 + device
    devices = [Device(0, i, "GPU") for i in range(2)]
    return replace(trace, devices=devices, runs={rank: Run()})


def test_replayed_ranks_are_merged_and_each_has_the_device_it_used() -> None:
    asked = Trace(devices=[Device(0, 0, "GPU"), Device(0, 1, "GPU")])  # the process of torchrun itself
    trace, notes = one_replay({1: asked, 2: as_rank(1, 1), 3: as_rank(0, 0)}, main=1)
    assert trace.ranks == [0, 1] and notes == []
    assert [(device.rank, device.index) for device in trace.devices] == [(0, 0), (1, 1)]
    assert sorted(trace.device.device.tolist()) == [0, 1]


def test_if_a_rank_has_several_processes_the_main_or_longest_one_counts() -> None:
    trace, notes = one_replay({2: as_rank(0, 0, steps=3), 3: as_rank(0, 0)}, main=3)
    assert len(trace.steps) == 1 and notes == ["2 processes used the GPU; the figures are those of process 3"]
    trace, notes = one_replay({2: as_rank(0, 0, steps=3), 3: as_rank(0, 0), 4: as_rank(1, 1)}, main=9)
    assert (trace.steps.rank == 0).sum() == 3 and notes[0].startswith("3 processes used the GPU as 2 ranks")


def test_the_training_process_represents_a_rank_instead_of_a_loader_worker() -> None:
    # GIVEN a DataLoader worker that inherited the recorder and has more evaluation steps than the main process
    worker, main, child = as_rank(0, 0, steps=9), as_rank(0, 0), as_rank(0, 0, steps=2)
    worker.steps.kind[:] = StepKind.EVALUATION
    assert process_of_each_rank({5: worker, 7: main}, main=7) == {0: 7}
    # WHEN a launcher did not train itself THEN its child process represents the rank
    assert process_of_each_rank({5: worker, 7: child}, main=5) == {0: 7}


def test_a_process_that_used_the_gpu_is_preferred_to_the_main_process() -> None:
    """GIVEN several processes of one rank that all trained THEN a process that used the GPU is preferred, then the main
    process. Otherwise, the numbers of steps and the GPU work decide."""
    idle, two, one = as_rank(0, 0, steps=2), as_rank(0, 0, steps=2), as_rank(0, 0)
    idle.device, idle.phases.device[:] = DeviceSpans.empty(), NONE
    assert process_of_each_rank({5: idle, 7: one}, main=5) == {0: 7}
    of_phases = as_rank(0, 0)
    of_phases.device = DeviceSpans.empty()  # a recording of phases shows that the GPU was used
    assert process_of_each_rank({5: of_phases, 7: idle}, main=7) == {0: 5}
    assert process_of_each_rank({5: one, 7: two}, main=5) == {0: 5}
    assert process_of_each_rank({5: one, 7: two}, main=9) == {0: 7}
    assert process_of_each_rank({7: two, 5: one}, main=9) == {0: 7}
    busier = as_rank(0, 0)
    busier.device = busier.device.take([0, 0])
    assert process_of_each_rank({5: one, 7: busier}, main=9) == process_of_each_rank({7: busier, 5: one}, main=9) == {0: 7}
    assert process_of_each_rank({4: Trace(), 6: Trace()}, main=6) == {0: 6}  # neither process worked
    kernels = as_rank(0, 0)
    kernels.steps = kernels.steps.take([])
    assert process_of_each_rank({4: Trace(), 8: kernels}, main=4) == {0: 8}  # work outside steps counts


def test_a_single_rank_keeps_its_number_and_its_devices() -> None:
    trace, notes = one_replay({2: as_rank(3, 1), 9: Trace()}, main=9)
    assert (trace.ranks, notes) == ([0, 3][-len(trace.ranks) :], []) and [device.index for device in trace.devices] == [1]
    unused = as_rank(0, 0)
    unused.device, unused.phases.device[:], unused.memory = DeviceSpans.empty(), NONE, type(unused.memory).empty()
    other = as_rank(1, 1)
    merged, _ = one_replay({2: unused, 3: other}, main=9)
    assert len([device for device in merged.devices if device.rank == 0]) == 2  # neither device was used, so both are kept


def test_a_process_with_several_ranks_is_listed_under_its_lowest_rank() -> None:
    both = replace(as_rank(0, 0), runs={2: Run(), 1: Run()})
    assert process_of_each_rank({5: as_rank(0, 0), 7: both, 9: replace(as_rank(0, 0), runs={})}, main=5) == {0: 5, 1: 7}

"""Tests which kernels of two traces correspond to each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.traces.handmade import US, Call, calls, replay_of, training
from traces.comparison.counterparts import Counterparts, KernelChange, counterparts, paired_steps, pairs_in_same_order
from traces.model.trace import NONE, DeviceSpans, Trace


def found_in(first: Trace, second: Trace) -> Counterparts:
    return counterparts(first, second, paired_steps(first, second))


def without(trace: Trace, row: int) -> Trace:
    trace.device = trace.device.take(np.delete(np.arange(len(trace.device)), row))
    return trace


def test_in_two_equal_traces_each_kernel_matches_itself() -> None:
    found = found_in(training(steps=3), training(steps=3))
    assert (found.first == found.second).all() and len(found) == len(training(steps=3).device)
    assert (found.change == KernelChange.SAME).all() and not found.change_ns.any()


def test_a_recorded_kernel_matches_one_kernel_in_each_replay_of_its_step() -> None:
    recorded = training(steps=2)
    found = found_in(recorded, replay_of(recorded))
    for row in range(len(recorded.device)):
        places = found.of(0, row)
        assert len(places) == 2 and len(set(found.second[places].tolist())) == 2
        assert all(found.of(1, int(found.second[place])).tolist() == [place] for place in places)


def test_a_kernel_change_is_longer_shorter_or_within_the_tolerance() -> None:
    first, second = training(steps=1), training(steps=1)
    second.device.duration_ns[1] += 3 * US
    second.device.duration_ns[2] -= 1 * US  # a profiler may round times to whole microseconds
    second.device.duration_ns[3] -= 3 * US
    found = found_in(first, second)
    rows = zip(found.first, found.change, found.change_ns, strict=True)
    changes = {int(row): (KernelChange(int(kind)), int(ns)) for row, kind, ns in rows}
    assert changes[1] == (KernelChange.LONGER, 3 * US)
    assert (changes[2], changes[3]) == ((KernelChange.SAME, -US), (KernelChange.SHORTER, -3 * US))


def test_two_kernels_with_different_names_match_if_the_same_call_launched_them() -> None:
    first, second = training(steps=2), training(steps=2)
    row = 1
    second.device.name[row] = second.strings.add("another_sgemm")
    found = found_in(first, second)
    (place,) = found.of(0, row)
    assert (found.second[place], found.change[place]) == (row, KernelChange.OTHER_KERNEL)
    assert (np.delete(found.change, place) == KernelChange.SAME).all()


def test_inductor_kernels_that_differ_only_in_number_are_counterparts() -> None:
    first, second = training(steps=1), training(steps=1)
    for trace, number in ((first, 3), (second, 7)):
        name = f"triton_poi_fused_add_relu_{number}"
        trace.device.name[1] = trace.strings.add(name)
        op = trace.host.parent[trace.device.launch[1]]
        trace.host.name[op] = trace.strings.add(name)
    found = found_in(first, second)
    (place,) = found.of(0, 1)
    assert (found.second[place], found.change[place]) == (1, KernelChange.SAME)


def test_a_kernel_in_only_one_trace_is_listed_as_gone_or_new() -> None:
    whole, less = training(steps=2), without(training(steps=2), 1)
    gone, new = found_in(whole, less), found_in(less, whole)
    assert [(int(k), int(r)) for k, r in zip(gone.change, gone.first, strict=True) if k] == [(KernelChange.GONE, 1)]
    assert [(int(k), int(r)) for k, r in zip(new.change, new.second, strict=True) if k] == [(KernelChange.NEW, 1)]
    assert gone.change_ns[gone.second == NONE] == -whole.device.duration_ns[1]


def test_traces_without_steps_are_matched_as_a_whole() -> None:
    def lone(*names: str) -> Trace:
        trace = training(steps=1)
        strings = [trace.strings.add(name) for name in names]
        bare = Trace(strings=trace.strings, devices=trace.devices)
        bare.device = DeviceSpans.of(
            device=[0] * len(names), name=strings, start_ns=np.arange(len(names)) * 10, duration_ns=[5] * len(names)
        )
        return bare

    found = found_in(lone("a", "b", "a"), lone("a", "a", "a"))
    kinds = sorted((int(a), int(b)) for a, b in zip(found.first, found.second, strict=True))
    assert kinds == [(NONE, 2), (0, 0), (1, NONE), (2, 1)]  # the third kernel matches the second kernel of the same name
    assert found_in(Trace(), Trace()).step.tolist() == []


def test_matching_kernels_in_swapped_order_are_marked_as_out_of_order() -> None:
    first, second = training(steps=2), training(steps=2)
    begin = second.device.start_ns
    begin[1], begin[2] = int(begin[2]), int(begin[1])
    found = found_in(first, second)
    kept = pairs_in_same_order(found, first, second)
    starts = [trace.device.start_ns[rows[kept]] for trace, rows in ((first, found.first), (second, found.second))]
    assert all((np.diff(times) > 0).all() for times in starts)
    assert len(kept) == len(first.device) - 1


def test_kernel_order_is_compared_within_each_step() -> None:
    """GIVEN two equal traces WHEN the second step of one trace runs before its first step THEN the kernels of each step still
    run in the same order."""
    first, second = training(steps=2), training(steps=2)
    found = found_in(first, second)
    second.device.start_ns[found.second[found.step == 1]] -= 1000 * US
    assert sorted(pairs_in_same_order(found, first, second).tolist()) == list(range(len(first.device)))


def test_kernel_order_is_compared_only_for_the_lowest_rank() -> None:
    first, second = training(steps=2), training(steps=2)
    for trace in (first, second):
        trace.devices = [replace(trace.devices[0], rank=1), trace.devices[0]]
        trace.device.device[1:] = 1  # the first kernel runs on rank 1, the others on rank 0
    found = found_in(first, second)
    kept = pairs_in_same_order(found, first, second)
    assert sorted(found.first[kept].tolist()) == list(range(1, len(first.device)))


def test_the_kernels_of_two_eager_ops_match_their_fused_kernel() -> None:
    """GIVEN an add and a relu of 10 us each in every step WHEN the second trace runs one fused kernel of 15 us instead THEN
    both kernels match the fused kernel."""
    conv, *others = calls(32)[1:]
    two = [Call("aten::add", "8,8;8,8", 37, "add_kernel"), Call("aten::relu", "8,8", 44, "relu_kernel")]
    fused = "triton_poi_fused_add_relu_0"
    first = training(steps=2, made=[conv, *two, *others])
    second = training(steps=2, made=[conv, Call(fused, "8,8;8,8", 37, fused), *others])
    is_fused = second.device.name == second.strings.find(fused)
    second.device.duration_ns[is_fused] = 15 * US
    found = found_in(first, second)
    assert not np.isin(found.change, (KernelChange.GONE, KernelChange.NEW)).any()
    for step, row in enumerate(np.flatnonzero(is_fused).tolist()):
        places = found.of(1, row)
        names = [first.strings[int(first.device.name[found.first[place]])] for place in places]
        assert sorted(names) == ["add_kernel", "relu_kernel"] and found.step[places].tolist() == [step, step]
        assert found.change[places].tolist() == [KernelChange.OTHER_KERNEL] * 2
        assert sorted(found.change_ns[places].tolist()) == [-10 * US, 5 * US]  # the step takes 15 us instead of 20 us
    # The phases of one trace may be unknown.
    bare = replace(second, phases=second.phases.take([]))
    for one, other in ((first, bare), (bare, first)):
        assert not np.isin(found_in(one, other).change, (KernelChange.GONE, KernelChange.NEW)).any()
    # WHEN the traces are exchanged THEN one kernel was split into two.
    split = found_in(second, first)
    assert not np.isin(split.change, (KernelChange.GONE, KernelChange.NEW)).any()
    assert split.change_ns.sum() == -found.change_ns.sum() == 2 * 5 * US


def test_an_op_that_the_second_trace_does_not_replace_counts_as_gone() -> None:
    """GIVEN a second trace with a fused kernel for the add WHEN it has no kernel for the cumsum THEN only the kernel of the
    cumsum is gone."""
    conv, *others = calls(32)[1:]
    fused = "triton_poi_fused_add_0"
    first = training(
        steps=1, made=[conv, Call("aten::add", "8,8;8,8", 37, "add_kernel"), Call("aten::cumsum", "8,8", 44, "scan"), *others]
    )
    found = found_in(first, training(steps=1, made=[conv, Call(fused, "8,8;8,8", 37, fused), *others]))
    gone = found.first[found.change == KernelChange.GONE]
    assert [first.strings[int(first.device.name[row])] for row in gone] == ["scan"]
    assert not (found.change == KernelChange.NEW).any()

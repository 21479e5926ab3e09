"""Tests that a recording shows how nn.DataParallel transfers parameters: by NCCL, by copies, or not at all."""

from __future__ import annotations

import pytest

from replayer.recording.data_parallel_stages import BROADCAST, REDUCE, CopyMethod, copy_method_of, nccl_ops
from replayer.recording.recorded_run import RecordedRun
from traces.model.trace import Collectives, Device, DeviceKind, DeviceSpans, HostKind, HostSpans, Phases, Steps, Thread, Trace

_BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def recording(*work: tuple[str, DeviceKind, int], op: str = "Broadcast") -> Trace:
    """Return a recording of a forward phase of 1 ms with one op, which launched each (name, kind, device) in `work`."""
    trace = Trace(devices=[Device(0, 0, "a"), Device(0, 1, "a")], threads=[Thread(0, 1, role="main")])
    names = [trace.strings.add(text) for text in (op, "cudaLaunchKernel", "forward")]
    trace.steps = Steps.of(number=[0], start_ns=[0], duration_ns=[1_000_000])
    trace.phases = Phases.of(step=[0], name=[names[2]], start_ns=[0], duration_ns=[1_000_000])
    trace.host = HostSpans.of(
        name=[names[0], names[1]],
        kind=[HostKind.OP, HostKind.RUNTIME],
        thread=[0, 0],
        start_ns=[100, 200],
        duration_ns=[500, 10],
        parent=[-1, 0],
    )
    trace.device = DeviceSpans.of(
        name=[trace.strings.add(name) for name, _, _ in work],
        kind=[kind for _, kind, _ in work],
        device=[device for _, _, device in work],
        start_ns=[1000 + 100 * place for place in range(len(work))],
        duration_ns=[50] * len(work),
        launch=[1] * len(work),
    )
    return trace


@pytest.mark.parametrize(
    ("work", "copy_method"),
    [
        (
            [("cat", DeviceKind.KERNEL, 0), (_BROADCAST, DeviceKind.KERNEL, 0), (_BROADCAST, DeviceKind.KERNEL, 1)],
            CopyMethod.NCCL,
        ),
        ([("cat", DeviceKind.KERNEL, 0), ("Memcpy PtoP (Device -> Device)", DeviceKind.MEMCPY, 1)], CopyMethod.COPIES),
        ([("cat", DeviceKind.KERNEL, 0), ("cat", DeviceKind.KERNEL, 1)], CopyMethod.NOTHING),
        ([("cat", DeviceKind.KERNEL, 0)], CopyMethod.COPIES),  # With one GPU, no parameters were transferred.
    ],
)
def test_the_launched_kernels_show_the_copy_method(work: list[tuple[str, DeviceKind, int]], copy_method: CopyMethod) -> None:
    assert copy_method_of(recording(*work)) is copy_method
    without_copy_ops = copy_method if copy_method is CopyMethod.NCCL else CopyMethod.COPIES
    assert copy_method_of(recording(*work, op="aten::cat")) is without_copy_ops


def test_nccl_kernels_count_as_separate_ops_on_each_device() -> None:
    reduce = "ncclKernel_Reduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
    names = [(_BROADCAST, 0), (_BROADCAST, 1), (reduce, 1), (reduce, 0), ("cat", 0)]
    trace = recording(*((name, DeviceKind.KERNEL, device) for name, device in names))
    assert set(nccl_ops(trace).values()) == {BROADCAST, REDUCE}
    found = RecordedRun(trace)
    forward = found.steps[0].segments["forward", 0]
    instances = {op: found.match_keys.of_op(op, (), "").exact for op in (BROADCAST, REDUCE)}
    assert [one.kernels for one in forward.exact[instances[BROADCAST]]] == [(0,)]
    assert [one.kernels for one in forward.lane(1).exact[instances[BROADCAST]]] == [(1,)]
    assert [one.kernels for one in forward.lane(1).exact[instances[REDUCE]]] == [(2,)]
    assert [one.kernels for one in forward.exact[instances[REDUCE]]] == [(3,)]
    assert (forward.below_ops, forward.lane(1).below_ops) == ({0, 3, 4}, {1, 2})


def test_all_reduces_and_recorded_collectives_are_not_transfers_of_data_parallel() -> None:
    broadcasts = [(_BROADCAST, DeviceKind.KERNEL, device) for device in (0, 1)]
    trace = recording(*broadcasts, ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", DeviceKind.KERNEL, 1))
    assert len(nccl_ops(trace)) == 1
    trace.collectives = Collectives.of(name=[0], start_ns=[0], duration_ns=[1])
    assert nccl_ops(trace) == {}

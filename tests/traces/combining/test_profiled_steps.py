"""Tests how events in the phases of profiled steps are counted by kind."""

from __future__ import annotations

from tests.traces.profiled_traces import UNIX_NS, add_ops, recorded
from traces.combining.profiled_steps import HostEvents
from traces.model.trace import NONE, DeviceSpans, HostKind, MemoryEvents, StepKind, Thread


def test_profiler_cost_distinguishes_kinds_of_events() -> None:
    trace = recorded([(StepKind.PROFILED, [("forward", 100), ("backward", 100)])])
    add_ops(trace, [(10, 50), (130, 5)])
    trace.host.shapes[1] = NONE
    add_ops(trace, [(12, 40)], HostKind.OP, "nn.Module: Linear_0")
    add_ops(trace, [(0, 200)], HostKind.ANNOTATION, "ProfilerStep#0")
    add_ops(trace, [(20, 5), (30, 5)], HostKind.RUNTIME, "cudaLaunchKernel")
    trace.device = DeviceSpans.of(device=[0], stream=[7], name=[0], start_ns=[UNIX_NS + 30], duration_ns=[5], launch=[4])
    trace.memory = MemoryEvents.of(thread=[0, 0, 1], time_ns=[UNIX_NS + 40, UNIX_NS + 150, UNIX_NS + 60], bytes=[1, -1, 1])
    trace.threads.append(Thread(0, 2, "pin_memory"))  # this thread neither trains nor launches
    counts = HostEvents.of(trace, 0).counts(trace.phases.start_ns, trace.phases.end_ns)
    # The kinds are op, op without shapes, range, module, runtime call, launch, memory event, compiled range, Triton kernel.
    assert counts.tolist() == [[1, 0, 1, 1, 1, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0, 1, 0, 0]]


def test_ranges_and_triton_kernels_of_compiled_code_are_counted_separately() -> None:
    """GIVEN a compiled region with a matrix product and a Triton kernel THEN only the matrix product counts as an op."""
    trace = recorded([(StepKind.PROFILED, [("forward", 100)])])
    names = ["Torch-Compiled Region: 0/0", "CompiledFunction", "## Call CompiledFxGraph f1 ##", "aten::mm", "triton_poi_0"]
    for start, name in enumerate(names):
        add_ops(trace, [(10 * start, 5 if start > 2 else 90 - 10 * start)], name=name)
    trace.host.parent[:] = [NONE, 0, 1, 2, 2]
    counts = HostEvents.of(trace, 0).counts(trace.phases.start_ns, trace.phases.end_ns)
    assert counts.tolist() == [[1, 0, 0, 0, 0, 0, 0, 3, 1]]

"""Tests that a model on one GPU and the same model on several GPUs are the same program."""

from __future__ import annotations

from dataclasses import replace

from tests.traces.comparison.program.verdicts import verdict_of
from tests.traces.handmade import BACKWARD, MAIN, US, calls, training
from traces.combining.merge import merge_ranks
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import Both
from traces.comparison.explain import explain
from traces.model.trace import Parts, Thread, Trace
from traces.model.workload import Sameness

SECOND = 2  # the thread of the second replica


def with_replicas(batch: int, op: str = "aten::conv2d") -> Trace:
    """Return a training trace in which two threads run the forward pass, each for half of the batch. The main thread computes
    the loss of the whole batch."""
    copy, _, loss, *rest = calls(batch)
    convolution = replace(calls(batch // 2)[1], op=op, inner="")
    applied = [replace(convolution, start_us=36, thread=thread) for thread in (BACKWARD, SECOND)]
    scatter = replace(convolution, op="Scatter", shapes=f"{batch},3,8,8", start_us=31)
    trace = training(made=[copy, scatter, *applied, loss, *rest])
    trace.threads = [*trace.threads, Thread(0, 300, "replica", "other")]
    stages = [("scatter", MAIN, 30, 5), ("parallel_apply", BACKWARD, 35, 10), ("parallel_apply", SECOND, 35, 10)]
    forward = [int(row) for row in range(len(trace.phases)) if trace.strings[int(trace.phases.name[row])] == "forward"]
    parts = [(row, *stage) for row in forward for stage in stages]
    starts_ns = trace.steps.start_ns
    trace.parts = Parts.of(
        phase=[row for row, *_ in parts],
        name=[trace.strings.add(name) for _, name, *_ in parts],
        thread=[thread for _, _, thread, *_ in parts],
        start_ns=[int(starts_ns[trace.phases.step[row]]) + at * US for row, _, _, at, _ in parts],
        duration_ns=[took * US for *_, took in parts],
    )
    return trace


def test_a_model_on_one_gpu_and_under_data_parallel_is_the_same_model() -> None:
    one, two = training(batch=32), with_replicas(32)
    comparison = compare(one, two)
    assert comparison.verdict.sameness is Sameness.OTHER_PARALLELISM and comparison.verdict.same is False
    on_two = "on 2 GPUs with nn.DataParallel"
    reason = f"the first trace runs the model on one GPU, and the second runs the same model {on_two}"
    assert comparison.verdict.reason == reason
    assert comparison.batch_sizes == Both(32, 32)  # each replica gets 16 samples
    assert verdict_of(two, one)[1] == f"the first trace runs the model {on_two}, and the second runs the same model on one GPU"


def test_under_data_parallel_the_batch_size_is_the_sum_over_all_replicas() -> None:
    comparison = compare(training(batch=32), with_replicas(128))
    assert comparison.verdict.sameness is Sameness.OTHER_PARALLELISM and comparison.batch_sizes == Both(32, 128)


def test_a_different_model_under_data_parallel_is_a_different_program() -> None:
    assert compare(training(batch=32), with_replicas(32, "aten::relu")).verdict.sameness is Sameness.OTHER_PROGRAM


def test_a_model_on_one_gpu_and_in_two_ranks_is_the_same_model() -> None:
    """GIVEN two ranks that each compute half of the batch WHEN another trace runs the whole batch on one GPU THEN both traces
    run the same model. The ranks also copy buffers before the forward pass, as DistributedDataParallel does."""
    copy, *rest = calls(16)
    buffers = [replace(rest[0], op=op, inner="", shapes="64", start_us=31) for op in ("aten::cat", "aten::copy_")]
    ranks = merge_ranks([training(made=[copy, *buffers, replace(rest[0], start_us=40), *rest[1:]]) for _ in range(2)])
    comparison = compare(training(batch=32), ranks)
    assert comparison.verdict.reason == (
        "the first trace runs the model on one GPU, and the second runs the same model on one GPU in each of 2 ranks"
    )
    assert comparison.batch_sizes == Both(32, 16)  # each rank gets 16 samples
    assert "A step processes 32 samples on 1 GPU in A and 32 on 2 GPUs in B" in " ".join(explain(comparison).summary)

"""Tests that traces with the same ops can be from different programs."""

from __future__ import annotations

from dataclasses import replace

from tests.traces.comparison.program.verdicts import verdict_of
from tests.traces.handmade import MAIN, Call, calls, training
from traces.comparison.compare import compare
from traces.model.trace import NONE, Trace
from traces.model.workload import Sameness, WorkloadSignature


def test_a_trace_with_a_different_optimizer_is_a_different_program() -> None:
    def stepping(name: str) -> Trace:
        return training(made=[*calls(32), Call(f"Optimizer.step#{name}.step", "", 92, "step")])

    for hide_shapes in (False, True):
        ours, same, other = stepping("SGD"), stepping("SGD"), stepping("AdamW")
        for trace in (ours, same, other) if hide_shapes else ():
            trace.host.shapes[:] = NONE
        assert verdict_of(ours, same)[0] is True
        assert verdict_of(ours, other) == (
            False,
            ("the same forward pass, but another optimizer: SGD in the first trace, AdamW in the second"),
        )
    # WHEN one trace has no optimizer THEN this does not count as a difference
    assert verdict_of(training(), stepping("SGD"))[0] is True


def test_a_different_number_of_trainable_parameters_is_a_different_program() -> None:
    whole, frozen, unknown = training(4), training(5), training(6)
    whole.workload = WorkloadSignature(100, 400, {"Linear": 2}, optimizer="SGD", trainable_parameters=100)
    frozen.workload = replace(whole.workload, trainable_parameters=40)
    unknown.workload = replace(whole.workload, trainable_parameters=None)
    reason = "the same forward pass, but 100 trainable parameters in the first trace, 40 in the second"
    assert verdict_of(whole, frozen) == (False, reason)
    assert verdict_of(whole, unknown)[0] is True
    # WHEN the traces have no ranges of optimizers THEN the workload signatures name the optimizers
    frozen.workload = replace(whole.workload, optimizer="Adam")
    assert verdict_of(whole, frozen) == (
        False,
        ("the same forward pass, but another optimizer: SGD in the first trace, Adam in the second"),
    )


def test_a_program_without_a_backward_pass_is_a_different_program() -> None:
    with_backward, without = training(), training(made=[call for call in calls(32) if call.thread == MAIN])
    without.phases = without.phases.take(without.phases.name != without.strings.find("backward"))
    verdict = compare(with_backward, without).verdict
    assert (verdict.sameness, verdict.reason) == (Sameness.OTHER_PROGRAM, "only one of them has the phase backward")

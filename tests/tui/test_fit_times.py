"""Tests the step time of a script on each GPU, with a library of two GPUs and a run of 100 us per step on a third GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from replayer.cost_model import collective_costs
from replayer.prediction import scaling
from tests.traces.handmade import US, training
from traces.figures.measure import launch_steps
from traces.library.cells import NotMeasured
from traces.model.trace import Collectives, DeviceKind, StepKind, Trace, TraceError, TraceLibraryError
from traces.model.workload import WorkloadSignature
from traces.names.cards import find_card
from tui.commands import fit_times
from tui.commands.fit_times import KnownTimes

V100, P100, A100 = find_card("v100"), find_card("p100"), find_card("a100")
PHASES_NS = {"h2d": 1000 * US, "forward": 2000 * US, "backward": 3000 * US}
WORKLOAD = WorkloadSignature()


class Cell:
    """A library entry that was measured at one batch size."""

    name, last_batch, out_of_memory_batch = "v100/net", 32, 33
    batches = ()

    def for_batch(self, batch: int) -> Any:
        if batch != 32:
            cell: Any = self
            raise NotMeasured(cell, batch)
        return SimpleNamespace(phases_ns=PHASES_NS)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake a library in which the V100 has the script's workload, the P100 has another workload, and a third GPU has no
    match."""
    gpus = [SimpleNamespace(name="v100", device=V100.names[0]), SimpleNamespace(name="p100", device=P100.names[0])]

    def match(name: str, workload: WorkloadSignature) -> Any:
        if name == "broken":
            raise TraceLibraryError("no entry")
        return SimpleNamespace(is_same=name == "v100", cell=Cell())

    broken = SimpleNamespace(name="broken", device="")
    monkeypatch.setattr(fit_times, "catalogue", SimpleNamespace(gpus=lambda: [broken, *gpus], match=match))
    # On every GPU, the work takes twice as long as in the recorded run.
    twice = lambda trace, recording, conditions: SimpleNamespace(durations_ns=trace.device.duration_ns * 2.0)  # noqa: E731
    monkeypatch.setattr(scaling.Scaling, "of", twice)


def step_ns(known: KnownTimes, card: Any) -> int:
    found = known.step(card)
    assert found is not None
    return found.step_ns


def test_a_measured_step_time_is_the_sum_of_its_phases() -> None:
    known = KnownTimes(WORKLOAD, 32, None)
    found = known.step(V100)
    assert found is not None
    assert (found.step_ns, found.source, found.is_estimate) == (6000 * US, "v100/net", False)
    assert known.step(P100) is None  # the P100 measured another workload, and there is no run to estimate from


def test_an_inference_step_takes_the_time_of_copy_and_forward_pass() -> None:
    found = KnownTimes(WORKLOAD, 32, None, trains=False).step(V100)
    assert found is not None
    assert (found.step_ns, found.is_estimate) == (3000 * US, True)


@pytest.mark.parametrize("batch", [31, None])
def test_fit_shows_no_measured_step_time_for_an_unmeasured_batch_size(batch: int | None) -> None:
    assert KnownTimes(WORKLOAD, batch, None).step(V100) is None


def test_a_batch_limit_is_known_only_for_the_measured_gpu() -> None:
    known = KnownTimes(WORKLOAD, 32, None)
    limit = known.limit(V100)
    assert limit is not None and (limit.fitted, limit.full) == (32, 33)
    assert known.limit(P100) is None


def test_an_estimated_step_time_is_the_sum_of_its_gpu_times() -> None:
    """GIVEN five kernels of 10 us per step WHEN each takes twice as long THEN the step time is estimated as 100 us."""
    found = KnownTimes(WORKLOAD, 7, training(steps=4)).step(A100)
    assert found is not None
    assert (found.step_ns, found.source, found.is_estimate) == (100 * US, "estimated", True)
    assert found.error is not None


def test_measurements_on_one_gpu_improve_the_estimate_for_another_gpu() -> None:
    """On the V100, the step was estimated as 100 us and measured as 6 ms, which is 60 times as long. The estimate for the A100
    is multiplied by 60."""
    found = KnownTimes(WORKLOAD, 32, training(steps=4)).step(A100)
    assert found is not None
    assert (found.step_ns, found.source) == (6000 * US, "estimated, corrected by v100/net")


def test_fit_estimates_step_times_from_steady_steps() -> None:
    trace = training(steps=4)
    trace.steps.kind[0] = StepKind.WARMUP
    trace.device.duration_ns[trace.device.start_ns < trace.steps.start_ns[1]] *= 100
    assert step_ns(KnownTimes(WORKLOAD, 7, trace), A100) == 100 * US


def test_an_estimated_step_time_does_not_include_evaluation_steps() -> None:
    """GIVEN training steps 0, 2, 4 and 6 of 100 us WHEN the evaluation steps 1, 3 and 5 take 1 ms, and step 0 also contains an
    evaluation THEN the step time is the median of the training steps, 100 us."""
    trace = training(steps=7)
    step = launch_steps(trace)
    trace.steps.kind[1::2] = StepKind.EVALUATION
    trace.device.duration_ns[np.isin(step, (0, 1, 3, 5))] *= 10
    assert step_ns(KnownTimes(WORKLOAD, 7, trace), A100) == 100 * US


def test_an_estimated_step_time_includes_rare_work_that_repeats() -> None:
    """GIVEN 12 training steps WHEN every fourth step takes 900 us and all other steps take 100 us THEN the estimated step time
    is the mean step time, 300 us."""
    trace = training(steps=12)
    trace.device.duration_ns[launch_steps(trace) % 4 == 3] *= 9
    assert step_ns(KnownTimes(WORKLOAD, 12, trace), A100) == 300 * US


def test_fit_uses_evaluation_steps_if_there_are_no_steady_training_steps() -> None:
    trace = training(steps=4)
    trace.steps.kind[:] = StepKind.WARMUP
    trace.steps.kind[2:] = StepKind.EVALUATION
    assert step_ns(KnownTimes(WORKLOAD, 7, trace), A100) == 100 * US


def test_a_run_without_gpu_work_gives_no_estimated_step_time() -> None:
    trace = training(steps=2)
    trace.device = trace.device.take(np.zeros(len(trace.device), dtype=bool))
    assert KnownTimes(WORKLOAD, 7, trace).step(A100) is None


def test_a_gpu_that_cannot_be_estimated_has_no_step_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: Any) -> Any:
        raise TraceError("unknown GPU")

    monkeypatch.setattr(scaling.Scaling, "of", refuse)
    assert KnownTimes(WORKLOAD, 7, training(steps=2)).step(A100) is None


def with_collectives(*names: str) -> Trace:
    """Return a trace with collectives of 1 KiB between two ranks. In each step, the first collective begins after 1 ns, and the
    others begin at the end of the step."""
    trace = training(steps=4)
    starts, ends = trace.steps.start_ns, trace.steps.start_ns + trace.steps.duration_ns
    calls = [
        (name, int(at)) for step in range(4) for name, at in zip(names, [starts[step] + 1, *[ends[step]] * 9], strict=False)
    ]
    trace.collectives = Collectives.of(
        name=[trace.strings.add(name) for name, _ in calls],
        rank=[0] * len(calls),
        group_size=[2] * len(calls),
        bytes=[1024] * len(calls),
        start_ns=[at for _, at in calls],
        duration_ns=[US] * len(calls),
    )
    return trace


@pytest.fixture
def every_collective_takes_15_us(monkeypatch: pytest.MonkeyPatch) -> None:
    class Costs:
        def __init__(self, gpu: str) -> None: ...

        def next(self, name: str, size_bytes: int, ranks: int) -> Any:
            assert (size_bytes, ranks) == (1024, 2)
            return SimpleNamespace(duration_ns=15 * US)

    monkeypatch.setattr(collective_costs, "CollectiveCosts", Costs)


@pytest.mark.parametrize(
    ("names", "added_us"),
    [
        (("all_gather",), 15),
        (("all_gather", "broadcast"), 30),
        (("all_reduce",), 15),  # the all-reduce begins at the end of the backward pass
        # The backward pass takes 20 us. The first all-reduce runs from 10 to 25 us, and the second one until 40 us.
        (("all_reduce", "all_reduce"), 20),
        (("reduce_scatter", "all_gather", "all_reduce"), 35),
    ],
)
@pytest.mark.usefixtures("every_collective_takes_15_us")
def test_communication_that_outlasts_the_backward_pass_lengthens_a_step(names: tuple[str, ...], added_us: int) -> None:
    found = KnownTimes(WORKLOAD, 7, with_collectives(*names)).step(A100)
    assert found is not None
    assert (found.step_ns, found.communication_ns) == ((100 + added_us) * US, added_us * US)


@pytest.mark.usefixtures("every_collective_takes_15_us")
def test_estimates_hide_more_communication_behind_a_longer_backward_pass() -> None:
    """The measured step is 60 times as long as estimated, so the backward pass takes 1200 us. Only the last 15 us of
    communication remain visible."""
    found = KnownTimes(WORKLOAD, 32, with_collectives("all_reduce", "all_reduce")).step(V100)
    assert found is not None
    assert (found.communication_ns, found.is_estimate) == (15 * US, True)


@pytest.mark.usefixtures("every_collective_takes_15_us")
def test_kernels_of_collectives_do_not_count_as_computation() -> None:
    trace = with_collectives("all_gather")
    trace.device.name[trace.device.kind == DeviceKind.MEMCPY] = trace.strings.add("ncclDevKernel_AllGather_RING_LL")
    trace.device.kind[:] = DeviceKind.KERNEL
    assert step_ns(KnownTimes(WORKLOAD, 7, trace), A100) == (80 + 15) * US

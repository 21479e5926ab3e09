"""Tests that the recorder and the replayer divide the same script into the same steps and phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replayer.op_signature import OpSignature
from replayer.timing.host_threads import HostThread
from tests.replayer.recordings import US, Stage, phase_recording
from tests.tracer.fakes import Bench
from tracer.repeated_steps import NEW_TENSOR
from traces.format.trace_file import load
from traces.model.trace import StepKind
from traces.script.step_rule import Optimizers

# A step is "T" (training) or "E" (evaluation), with the names of its phases.
Cut = list[tuple[str, list[str]]]
MODULES = ("model", "other", "loss")
PHASES_MS = {"loader": 1, "h2d": 1, "forward": 1, "loss": 1, "zero_grad": 1, "backward": 1, "optimizer": 1, "other": 1}


class Recording:
    """Sends the script's calls to a recorder."""

    def __init__(self, folder: Path, optimizers: Optimizers) -> None:
        self._bench = Bench(folder, optimizers=optimizers)
        self._model = {name: object() for name in MODULES}
        self._optimizers = optimizers
        self._side = ThreadPoolExecutor(1)
        self._recorded = False  # whether autograd recorded an op since the last backward pass or module call

    def do(self, event: str) -> None:
        name, _, thread = event.partition("@")
        self._bench.run(10, 10)
        (self._side.submit(self._call, name).result if thread else lambda: self._call(name))()

    def _call(self, name: str) -> None:
        recorder = self._bench.recorder
        if name in ("backward", "mse_loss") and self._recorded:
            recorder.autograd_recorded(True)  # as if each backward pass built a graph
        self._recorded = name == "mm" or (self._recorded and name != "backward" and not name.startswith("call"))
        if name in ("loader", "h2d", "zero_grad", "backward", "optimizer", "step", "second step", "exhausted"):
            phase = {"exhausted": "loader"}.get(name, "optimizer" if name.endswith("step") else name)
            recorder.enter_phase(phase)
            self._bench.run(10, 10)
            recorder.leave_phase(phase)
            if name == "exhausted":
                recorder.loader_exhausted()
            elif name.endswith("step"):
                recorder.optimizer_stepped(name == "step")
        elif name.startswith("call"):
            recorder.module_called(id(self._model[name.split()[1]]), "no_grad" not in name)
        elif name == "made":
            self._optimizers.add(self._bench)
        elif name == "torch.tensor":
            recorder.enter_phase(NEW_TENSOR)
            self._bench.run(10, 10)
            recorder.leave_phase(NEW_TENSOR)
        elif name == "mse_loss":
            recorder.loss_called()
        elif name == "item":
            recorder.read_called()

    def cut(self) -> Cut:
        self._bench.recorder.close()
        self._side.shutdown()
        trace = load(self._bench.path)
        steps = [(row, "E" if kind == StepKind.EVALUATION else "T") for row, kind in enumerate(trace.steps.kind.tolist())]
        assert (np.diff(trace.phases.start_ns) >= 0).all() and (trace.phases.duration_ns >= 0).all()
        names = {row: trace.phases.name[trace.phases.step == row].tolist() for row, _ in steps}
        return [(kind, [trace.strings[name] for name in names[row]]) for row, kind in steps]


class Replay:
    """Sends the script's calls and ops to a virtual GPU."""

    def __init__(self, optimizers: Optimizers, phases_ms: dict[str, int]) -> None:
        self._stage = Stage(phase_recording(phases_ms), optimizers=optimizers)
        self._other = HostThread(1, self._stage.clock.now_ns())
        self._cut: Cut = []
        self._told = 0

    def do(self, event: str) -> None:
        name, _, thread = event.partition("@")
        self._stage.clock.time_ns += 10 * US
        self._call(name, self._other if thread else self._stage.thread)
        self._look()

    def _call(self, name: str, thread: HostThread) -> None:
        tracker = self._stage.simulator.tracker
        if name in ("loader", "h2d", "zero_grad", "backward", "optimizer", "step", "second step", "exhausted"):
            phase = {"exhausted": "loader"}.get(name, "optimizer" if name.endswith("step") else name)
            tracker.enter(thread, phase)
            self._stage.clock.time_ns += 10 * US
            if name == "h2d" and thread is self._stage.thread:
                self._op(thread, "copy_", "h2d")
            tracker.leave(thread, phase)
            if name == "exhausted":
                tracker.script.loader_exhausted(thread)
            elif name.endswith("step"):
                tracker.optimizer_stepped(thread, name == "step")
        elif name.startswith("call"):
            tracker.module_called(thread, MODULES.index(name.split()[1]), "no_grad" not in name)
            if thread is self._stage.thread:  # the recorder does not see ops of other threads
                self._op(thread, "mm")
        elif name == "torch.tensor":
            tracker.enter(thread, "h2d", moves_tensor=False)
            self._stage.clock.time_ns += 10 * US
            self._op(thread, "copy_", "h2d")
            tracker.leave(thread, "h2d")
        elif name == "made":
            pass  # `Recording` has already added the optimizer for both
        else:
            if name == "mm":  # `mm` is the only op that autograd records
                tracker.forward_begins(thread)
            self._op(thread, name)

    def _op(self, thread: HostThread, name: str, direction: str = "") -> None:
        signature = OpSignature(f"aten::{name}", ((4, 4),), ("float32",), direction=direction)
        self._stage.simulator.play(thread, self._stage.stream, signature, self._stage.clock.now_ns())

    def _look(self) -> None:
        log = self._stage.log
        if len(log.steps) > len(self._cut):
            names = [phase[0] for phase in log.phases[self._told :]]
            self._cut.append(("E" if log.kinds[-1] == StepKind.EVALUATION else "T", names))
            self._told = len(log.phases)

    def cut(self) -> Cut:
        self._stage.simulator.tracker.stop(self._stage.thread)
        self._look()
        return self._cut


class _Optimizer:
    pass


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Callable[..., Cut]]:
    """Return a function that sends events to the recorder and the replayer. The function checks that both find the same steps
    and phases, and returns these."""
    optimizer, runs = _Optimizer(), 0

    def run(*events: str, has_optimizer: bool = True, phases_ms: dict[str, int] = PHASES_MS) -> Cut:
        nonlocal runs
        runs += 1
        optimizers = Optimizers()
        if has_optimizer:
            optimizers.add(optimizer)
        (tmp_path / str(runs)).mkdir()
        recording = Recording(tmp_path / str(runs), optimizers)
        replay = Replay(optimizers, phases_ms)
        for event in events:
            recording.do(event)
            replay.do(event)
        cut = recording.cut()
        assert replay.cut() == cut
        return cut

    yield run


FORWARD = ("loader", "h2d", "call model", "mse_loss")
TRAIN = (*FORWARD, "zero_grad", "backward", "step")
TRAINED = ("T", ["loader", "h2d", "forward", "loss", "zero_grad", "backward", "optimizer"])
BY_HAND = ("T", ["loader", "h2d", "forward", "loss", "backward", "other"])


def after_other(step: tuple[str, list[str]]) -> tuple[str, list[str]]:
    """Return the step with the phase other before its first phase."""
    kind, names = step
    return kind, ["other", *names]


def test_a_plain_loop_with_validation_has_training_and_evaluation_steps(both: Callable[..., Cut]) -> None:
    evaluate = ("loader", "h2d", "call model no_grad", "mse_loss")
    cut = both(*TRAIN * 2, "exhausted", *evaluate * 2, "exhausted")
    assert cut[:2] == [TRAINED] * 2 and [kind for kind, _ in cut] == ["T", "T", "E", "E"]


def test_an_early_model_call_belongs_to_a_step_only_if_it_has_a_backward_pass(both: Callable[..., Cut]) -> None:
    assert both("call model", "mm", *TRAIN) == [TRAINED]
    trained = both("call model", "backward", *TRAIN)
    assert trained == [("T", ["forward", "backward", *TRAINED[1]])]


def test_work_before_the_optimizer_is_created_belongs_to_no_step(both: Callable[..., Cut]) -> None:
    """GIVEN a loop without a DataLoader WHEN the model is moved to the device before the optimizer is created THEN this work
    belongs to no step."""
    step = ("h2d", "zero_grad", "call model", "mse_loss", "backward", "step")
    trained = ("T", ["h2d", "zero_grad", "forward", "loss", "backward", "optimizer"])
    both_steps = [trained, after_other(trained)]
    assert both("h2d", "h2d", "made", *step * 2, has_optimizer=False) == both_steps
    assert both("call model", "made", *step * 2, has_optimizer=False) == both_steps  # the first model call is only a test
    between = both(*step[:-1], "made", *step, has_optimizer=False)  # a second optimizer is created during training
    assert between == [("T", [*trained[1][:-1], *trained[1]])]


def test_a_batch_that_torch_tensor_creates_on_the_gpu_is_a_copy_and_begins_no_step(both: Callable[..., Cut]) -> None:
    """The copy of an existing tensor ends the inference step before it. The copy of a new tensor, such as the position of a
    token, does not."""
    step = ("torch.tensor", "zero_grad", "call model", "mse_loss", "backward", "step")
    trained = ("T", ["h2d", "zero_grad", "forward", "loss", "backward", "optimizer"])
    assert both(*step * 2) == [trained, after_other(trained)]
    inference = ("h2d", "call model no_grad", "mm", "torch.tensor", "mm")
    assert both(*inference * 2, "h2d", has_optimizer=False)[0] == ("E", ["h2d", "forward"])


def test_ops_before_the_first_zero_grad_belong_to_no_step(both: Callable[..., Cut]) -> None:
    step = ("zero_grad", "call model", "mse_loss", "backward", "step")
    trained = ("T", ["zero_grad", "forward", "loss", "backward", "optimizer"])
    assert both("normal_", "normal_", *step * 2) == [trained, after_other(trained)]
    forward_first = ("call model", "mse_loss", "zero_grad", "backward", "step")
    trained = ("T", ["forward", "loss", "zero_grad", "backward", "optimizer"])
    assert both(*forward_first * 2) == [trained, after_other(trained)]


def test_without_modules_the_ops_before_a_backward_pass_are_the_forward_pass(both: Callable[..., Cut]) -> None:
    half = ("loader", "h2d", "mm", "backward")
    assert both(*half, *half, "step") == [("T", ["loader", "h2d", "forward", "backward"] * 2 + ["optimizer"])]
    assert both("loader", "h2d", "mm", "mse_loss", "backward", "step") == [
        ("T", ["loader", "h2d", "forward", "loss", "backward", "optimizer"])
    ]


def test_a_second_forward_pass_follows_a_backward_pass(both: Callable[..., Cut]) -> None:
    step = ("loader", "call model", "backward")
    twice = ("T", ["loader", "forward", "backward", "forward", "backward", "optimizer"])
    assert both(*step, "call model", "backward", "step") == [twice]
    assert both(*step, "mm", "backward", "step") == [twice]  # a gradient penalty that calls no module
    penalty = both(*step, "mm", "mse_loss", "backward", "step")
    assert penalty == [("T", ["loader", "forward", "backward", "forward", "loss", "backward", "optimizer"])]
    logged = both(*step, "item", "call model", "backward", "step")
    assert logged == [("T", ["loader", "forward", "backward", "other", "forward", "backward", "optimizer"])]
    assert both(*step, "backward", "step") == [("T", ["loader", "forward", "backward", "optimizer"])]


def test_work_of_other_threads_belongs_to_the_phase_of_the_training_thread(both: Callable[..., Cut]) -> None:
    forward = ("loader", "h2d", "call model", "h2d@side", "call other@side", "loader@side", "mse_loss@side", "mse_loss")
    assert both(*[*forward, "zero_grad", "backward", "step"] * 2) == [TRAINED] * 2


def test_steps_are_found_in_the_thread_of_the_first_optimizer_step(both: Callable[..., Cut]) -> None:
    """WHEN the main thread calls the model once, and another thread trains THEN the second and later steps of the training
    thread are found."""
    side = [f"{event}@side" for event in TRAIN]
    assert both("call model", *side * 3)[-2:] == [TRAINED] * 2


def test_a_copy_within_a_module_call_belongs_to_the_forward_pass(both: Callable[..., Cut]) -> None:
    assert both("loader", "call model", "h2d", "mm", "backward", "step") == [
        ("T", ["loader", "forward", "backward", "optimizer"])
    ]


def test_a_copy_after_other_work_does_not_start_a_forward_pass(both: Callable[..., Cut]) -> None:
    """GIVEN one trainer that reads its loss WHEN the next batch of another trainer is copied THEN the copy does not begin a
    forward pass."""
    half = ("h2d", "call model", "backward")
    cut = both(*("h2d", "call model", "backward", "second step", "item", *half, "step") * 2)
    assert cut[0] == ("T", ["h2d", "forward", "backward", "optimizer", "other", "forward", "backward", "optimizer"])


def test_inference_with_gradients_enabled_is_divided_into_batches_after_a_dry_run(both: Callable[..., Cut]) -> None:
    """WHEN the model is called for the second batch THEN the first batch is separated from the setup. After that, each batch is
    a step."""
    cut = both("call other", *("loader", "call model") * 4, "exhausted")
    assert cut == [("E", ["loader", "forward", "loader"]), ("E", ["other", "forward"]), *[("E", ["loader", "forward"])] * 2]


@pytest.mark.parametrize("update", [("mul",), ("add_", "add_"), ()])
def test_without_an_optimizer_a_step_ends_where_the_next_batch_is_loaded(both: Callable[..., Cut], update: tuple[str]) -> None:
    step = (*FORWARD, "backward", *update)
    assert both(*step * 3, "exhausted", has_optimizer=False) == [BY_HAND] * 3


def test_without_optimizer_and_loader_a_step_ends_where_the_next_forward_pass_begins(both: Callable[..., Cut]) -> None:
    step = ("call model", "mse_loss", "backward", "mul", "call other no_grad")  # the last call computes a metric
    evaluate = ("call model no_grad", "mse_loss")
    cut = both(*step * 3, *evaluate * 2, *step, *step, has_optimizer=False)
    assert "".join(kind for kind, _ in cut) == "TTT" + "EE" + "TT"
    assert cut[0] == ("T", ["forward", "loss", "backward", "other"])


def test_training_without_modules_and_optimizer_is_divided_into_steps(both: Callable[..., Cut]) -> None:
    recorded_ms = {"forward": 1, "loss": 1, "backward": 1, "other": 1}
    cut = both(*("mm", "mse_loss", "backward", "mul") * 4, has_optimizer=False, phases_ms=recorded_ms)
    assert [kind for kind, _ in cut] == ["T"] * 4
    assert all("backward" in names for _, names in cut)


def test_backward_passes_before_the_first_optimizer_step_belong_to_one_step(both: Callable[..., Cut]) -> None:
    """The recorder sees the optimizer step only later, but the optimizer already exists."""
    cut = both(*[*FORWARD, "backward"] * 3, "step")
    assert [kind for kind, _ in cut] == ["T"]


def test_an_op_that_creates_a_tensor_begins_no_phase_that_the_recorder_did_not_see(both: Callable[..., Cut]) -> None:
    """GIVEN a loop that updates an average with `_foreach_lerp_` after zero_grad WHEN the recorder saw no such op THEN this op
    begins no phase."""
    recorded_ms = dict.fromkeys(("zero_grad", "h2d", "forward", "loss", "backward", "optimizer"), 1)
    step = ("zero_grad", "_foreach_lerp_", "h2d", "zeros", "call model", "mse_loss", "backward", "step")
    assert both(*step, phases_ms=recorded_ms) == [("T", list(recorded_ms))]


EVENTS = ["loader", "exhausted", "h2d", "zero_grad", "backward", "optimizer", "step", "second step", "item", "mse_loss"]
EVENTS += ["call model", "call model no_grad", "call other no_grad", "call loss", "loader@side", "h2d@side", "call model@side"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(EVENTS), max_size=25), st.booleans())
def test_recorder_and_replayer_divide_any_sequence_of_calls_into_the_same_steps(
    both: Callable[..., Cut], events: list[str], has_optimizer: bool
) -> None:
    both(*events, has_optimizer=has_optimizer)

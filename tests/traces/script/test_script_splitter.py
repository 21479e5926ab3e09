"""Tests how the calls of a script are divided into steps and phases. Every call takes 10 ns, and 1 ns passes between calls."""

from __future__ import annotations

from typing import Any

import pytest

from traces.script.phase_rule import ASIDE, LOSS, PLAIN
from traces.script.script_splitter import CutStep, ScriptSplitter
from traces.script.step_rule import Optimizers


class Optimizer: ...


class Script:
    """Makes calls and stores each completed step as text: `train` or `evaluate`, and the duration of each phase."""

    def __init__(self, optimizer: bool = True, more: bool | None = None) -> None:
        self.optimizers, self.optimizer, self.more = Optimizers(), Optimizer(), more
        if optimizer:
            self.optimizers.add(self.optimizer)
        self.splitter = ScriptSplitter[str](self, self.optimizers)
        self.now_ns = 0
        self.steps: list[str] = []
        self.cut_steps: list[CutStep] = []
        self.set_ups: list[int] = []
        self.left: list[str] = []
        self.evaluates: list[bool] = []
        self.began: list[str] = []

    # --- calls of a script

    def do(self, calls: str, thread: str = "main") -> None:
        for call in calls.split():
            getattr(self, f"_{call}", lambda t, call=call: self.in_phase(t, call))(thread)
            self.now_ns += 1

    def in_phase(self, thread: str, phase: str, **how: Any) -> None:
        self.splitter.enter(thread, phase, self.now_ns, **how)
        self.now_ns += 10
        self.splitter.leave(thread, phase, self.now_ns)

    def _module(self, thread: str, grad: bool = True) -> None:
        self.splitter.module_called(thread, 1, grad, self.now_ns)
        self.now_ns += 10
        self.splitter.module_returned()

    def _evaluated(self, thread: str) -> None:
        self._module(thread, grad=False)

    def _op(self, thread: str, kind: int = PLAIN) -> None:
        self.splitter.op(thread, kind, self.now_ns)
        self.now_ns += 10

    def _loss(self, thread: str) -> None:
        self._op(thread, LOSS)

    def _recorded(self, thread: str, uses_gradients: bool = True) -> None:
        self.splitter.autograd_recorded(thread, uses_gradients, self.now_ns)
        self.now_ns += 10

    def _logged(self, thread: str) -> None:
        self._recorded(thread, uses_gradients=False)

    def _fill(self, thread: str) -> None:
        self._op(thread, ASIDE)

    def _optimizer(self, thread: str) -> None:
        self.in_phase(thread, "optimizer")
        self.splitter.optimizer_stepped(thread, True, self.now_ns)

    def _second_optimizer(self, thread: str) -> None:
        self.in_phase(thread, "optimizer")
        self.splitter.optimizer_stepped(thread, False, self.now_ns)

    def _made(self, thread: str) -> None:
        self.other = Optimizer()
        self.optimizers.add(self.other)

    def _exhausted(self, thread: str) -> None:
        self.splitter.loader_exhausted(thread)

    def _stop(self, thread: str) -> None:
        self.splitter.stop(thread, self.now_ns)

    # --- events that ScriptSplitter reports

    def segment_begins(self, thread: str, name: str, now_ns: int) -> None:
        self.began.append(name)

    def phase_left(self, thread: str, name: str, now_ns: int) -> None:
        self.left.append(name)

    def set_up_ends(self, thread: str, now_ns: int) -> None:
        self.set_ups.append(now_ns)

    def step_evaluates(self, is_evaluation: bool) -> None:
        self.evaluates.append(is_evaluation)

    def step_ends(self, thread: str, step: CutStep) -> None:
        phases = " ".join(
            f"{phase.name} {phase.end_ns - phase.start_ns}" for phase in step.segments if phase.end_ns > phase.start_ns
        )
        self.steps.append(f"{'evaluate' if step.is_evaluation else 'train'}: {phases}")
        self.cut_steps.append(step)

    def more_recorded(self) -> bool | None:
        return self.more


def steps_of(calls: str, **script: Any) -> list[str]:
    run = Script(**script)
    run.do(calls)
    return run.steps


TRAIN = "train: loader 11 forward 11 loss 11 backward 10 optimizer 11"


@pytest.mark.parametrize(
    ("calls", "steps"),
    [
        ("loader module loss backward optimizer", [TRAIN]),
        ("loader module loss backward second_optimizer optimizer", [TRAIN.replace("optimizer 11", "optimizer 22")]),
        ("loader module loss backward", []),
        # Without a forward pass, the loss begins when the loader ends.
        ("loader loss backward optimizer", ["train: loader 11 loss 11 backward 10 optimizer 11"]),
        ("loader backward optimizer", ["train: loader 11 backward 10 optimizer 11"]),
        (
            "loader zero_grad loss backward optimizer",
            ["train: loader 11 zero_grad 10 forward 1 loss 11 backward 10 optimizer 11"],
        ),
        ("loader zero_grad backward optimizer", ["train: loader 11 zero_grad 10 forward 1 backward 10 optimizer 11"]),
        # Filling a new tensor does not begin a forward pass.
        ("loader fill module loss backward optimizer", [TRAIN.replace("forward 11", "other 11 forward 11")]),
        # A loss after a second copy does not begin a forward pass either.
        (
            "loader module loss backward h2d loss backward optimizer",
            ["train: loader 11 forward 11 loss 11 backward 10 h2d 11 forward 1 loss 11 backward 10 optimizer 11"],
        ),
        # If a module, such as a new loss function, moves to the GPU in the forward or loss phase, the phase continues.
        ("loader module other loss backward optimizer", [TRAIN.replace("forward 11", "forward 22")]),
        ("loader module loss other op loss backward optimizer", [TRAIN.replace("loss 11", "loss 44")]),
        ("loader other module loss backward optimizer", [TRAIN.replace("forward 11", "other 10 forward 12")]),
        # One step may have two backward passes.
        ("loader module backward backward optimizer", ["train: loader 11 forward 11 backward 21 optimizer 11"]),
        (
            "loader module backward loader module backward optimizer",
            ["train: loader 11 forward 11 backward 10 loader 12 forward 11 backward 10 optimizer 11"],
        ),
        # The second of two micro-batches has a forward pass, with or without a module call.
        (
            "loader module backward module backward optimizer",
            ["train: loader 11 forward 11 backward 10 forward 12 backward 10 optimizer 11"],
        ),
        (
            "loader module backward recorded loss backward optimizer",
            ["train: loader 11 forward 11 backward 10 forward 12 loss 11 backward 10 optimizer 11"],
        ),
        # Values that are computed from the output without gradients belong to the phase other.
        (
            "loader module backward logged backward optimizer",
            ["train: loader 11 forward 11 backward 10 other 12 backward 10 optimizer 11"],
        ),
        # An op that autograd records begins a forward pass only after a backward pass.
        ("loader module loss recorded backward optimizer", [TRAIN.replace("loss 11", "loss 22")]),
        # A loss may directly follow a backward pass.
        (
            "loader module backward loss backward optimizer",
            ["train: loader 11 forward 11 backward 10 loss 12 backward 10 optimizer 11"],
        ),
        # Gradient clipping after a backward pass is no forward pass.
        ("loader module backward op optimizer", ["train: loader 11 forward 11 backward 10 other 12 optimizer 10"]),
        # A copy before the module call is a phase, and a copy within a forward pass is not.
        ("loader h2d module backward optimizer", ["train: loader 11 h2d 10 forward 12 backward 10 optimizer 11"]),
        ("loader module h2d backward optimizer", ["train: loader 11 forward 22 backward 10 optimizer 11"]),
    ],
)
def test_a_training_step_is_divided_into_phases(calls: str, steps: list[str]) -> None:
    assert steps_of(calls) == steps


@pytest.mark.parametrize(
    ("calls", "steps"),
    [
        ("loader evaluated loader evaluated loader exhausted", ["evaluate: loader 11 forward 11"] * 2),
        ("loader evaluated loader evaluated stop", ["evaluate: loader 11 forward 11", "evaluate: loader 11 forward 11"]),
        ("loader evaluated", []),
        ("evaluated evaluated stop", ["evaluate: forward 11", "evaluate: forward 11"]),
    ],
)
def test_a_batch_without_gradients_is_an_evaluation_step(calls: str, steps: list[str]) -> None:
    assert steps_of(calls) == steps


def test_the_next_copy_ends_an_inference_step_only_if_it_moves_an_existing_tensor() -> None:
    """GIVEN inference without an optimizer and without a loader WHEN the next batch is copied THEN a step ends, unless the copy
    creates a new tensor."""
    assert steps_of("h2d evaluated h2d evaluated", optimizer=False) == ["evaluate: h2d 10 forward 12"]
    run = Script(optimizer=False)
    run.do("h2d evaluated")
    run.in_phase("main", "h2d", moves_tensor=False)
    assert run.steps == []


def test_a_copy_inside_a_module_does_not_end_an_inference_step() -> None:
    run = Script(optimizer=False)
    run.do("h2d evaluated")
    run.splitter.module_called("main", 2, False, run.now_ns)
    run.do("h2d")
    assert run.steps == []


def test_a_replay_uses_the_recording_to_decide_whether_more_calls_follow_in_the_step() -> None:
    assert steps_of("evaluated evaluated", optimizer=False, more=True) == []
    assert steps_of("evaluated evaluated", optimizer=False, more=False) == ["evaluate: forward 11"]


@pytest.mark.parametrize(
    ("set_up", "ends"),
    [
        ("h2d made", True),  # the model moved to the device before the optimizer existed
        ("fill", True),  # the script filled a tensor to warm up the allocator
        ("module", True),  # the script called the model once as a test
        ("module backward", False),  # the script trained
    ],
)
def test_work_before_the_first_batch_belongs_to_a_step_only_if_the_script_trains(set_up: str, ends: bool) -> None:
    run = Script()
    run.do(set_up)
    run.do("loader module loss backward optimizer")
    assert bool(run.set_ups) is ends
    assert (run.steps == [TRAIN]) is ends


def test_setup_is_recognized_only_before_the_first_step() -> None:
    run = Script()
    run.do("loader module loss backward optimizer")
    run.do("fill made module loader module loss backward optimizer")
    assert run.set_ups == []
    assert run.steps[1].startswith("train: other 13 forward 1")


def test_a_script_without_loader_begins_its_first_step_with_zero_grad() -> None:
    """The script creates batches on the device, and calls no module before zero_grad."""
    run = Script()
    run.do("op zero_grad module loss backward optimizer")
    assert run.steps == ["train: zero_grad 10 forward 12 loss 11 backward 10 optimizer 11"]
    run.do("op zero_grad module loss backward optimizer")
    assert run.steps[1] == "train: other 1 forward 11 zero_grad 10 forward 12 loss 11 backward 10 optimizer 11"


def test_a_loss_before_the_first_zero_grad_belongs_to_the_step() -> None:
    assert steps_of("zero_grad op zero_grad backward optimizer") == ["train: zero_grad 10 forward 1 backward 10 optimizer 11"]
    steps = steps_of("zero_grad op loss zero_grad backward optimizer")
    assert steps == ["train: zero_grad 10 forward 12 loss 11 zero_grad 10 backward 11 optimizer 11"]


def test_a_module_before_the_first_zero_grad_belongs_to_the_step() -> None:
    assert steps_of("module zero_grad backward optimizer") == ["train: forward 11 zero_grad 10 backward 11 optimizer 11"]


def test_once_the_training_thread_is_known_other_threads_begin_no_phases() -> None:
    run = Script()
    run.do("loader module")
    run.do("op loader module loss backward optimizer".replace("optimizer", "second_optimizer"), thread="prefetcher")
    run.do("loss backward optimizer")
    assert [phase.name for phase in run.cut_steps[0].segments] == ["loader", "forward", "loss", "backward", "optimizer"]
    assert run.splitter.thread == "main"


def test_the_thread_of_the_first_optimizer_is_the_training_thread() -> None:
    run = Script()
    run.do("loader", thread="prefetcher")
    run.do("optimizer", thread="trainer")
    assert run.splitter.thread == "trainer"


def test_the_training_thread_is_unknown_until_a_module_is_called() -> None:
    run = Script()
    run.do("zero_grad op", thread="other")
    assert run.splitter.thread is None
    run.do("module", thread="main")
    assert run.splitter.thread == "main"


def test_a_nested_backward_pass_begins_no_step() -> None:
    """GIVEN a training loop without modules WHEN each backward pass starts another one in autograd's thread THEN only the outer
    backward passes end steps."""
    run = Script(optimizer=False)
    for _ in range(3):
        run.do("op op")
        run.splitter.enter("main", "backward", run.now_ns)
        run.do("backward", thread="autograd")
        run.splitter.leave("main", "backward", run.now_ns)
    assert run.splitter.thread == "main"
    assert len(run.cut_steps) == 2  # the last backward pass does not end a step


@pytest.mark.parametrize(("thread", "evaluations"), [("other", 1), ("main", 2)])
def test_only_the_loader_of_the_training_thread_can_end_an_epoch(thread: str, evaluations: int) -> None:
    """GIVEN a script that has trained WHEN the loader of its training thread has no more batches THEN the next batch is a
    separate evaluation step."""
    run = Script()
    run.do("loader module loss backward optimizer loader evaluated")
    run.do("exhausted", thread)
    run.do("h2d evaluated loader")
    assert len(run.steps) == 1 + evaluations


def test_an_optimizer_in_a_backward_pass_does_not_end_a_step() -> None:
    """Hooks of parameters may call optimizers, in the main thread or in a thread of autograd."""
    run = Script()
    run.do("loader module")
    run.splitter.enter("main", "backward", run.now_ns)
    run.splitter.optimizer_stepped("autograd", False, run.now_ns)
    run.splitter.optimizer_stepped("main", False, run.now_ns)
    run.splitter.leave("main", "backward", run.now_ns + 10)
    assert run.steps == []
    run.do("loader")
    assert len(run.steps) == 1


def test_an_optimizer_after_a_backward_pass_may_not_end_a_step() -> None:
    """Only the first optimizer ends steps. If another optimizer runs after a backward pass, the next batch does not end the
    step."""
    run = Script()
    run.do("loader module backward")
    run.splitter.optimizer_stepped("main", False, run.now_ns)
    run.do("loader")
    assert run.steps == []


def test_a_step_without_module_calls_has_no_forward_phase_after_the_loader() -> None:
    steps = steps_of("loader loss backward optimizer loader loss backward optimizer")
    assert steps == ["train: loader 11 loss 11 backward 10 optimizer 11", "train: loader 12 loss 11 backward 10 optimizer 11"]


def test_a_nested_phase_does_not_end_the_outer_phase() -> None:
    run = Script()
    run.splitter.enter("main", "backward", 0)
    run.do("h2d")
    assert run.splitter.entered == "backward" and run.left == []
    run.splitter.leave("main", "backward", 20)
    assert (run.splitter.entered, run.splitter.current, run.left) == ("", "backward", ["backward"])


def test_no_op_begins_a_new_phase_while_a_reported_phase_is_running() -> None:
    run = Script()
    run.splitter.enter("main", "backward", 0)
    assert run.splitter.begins_segment == (False, False, False, False)
    run.splitter.leave("main", "backward", 10)
    assert run.splitter.begins_segment == (True, True, True, True)
    run.do("module")
    assert run.splitter.begins_segment == (False, True, False, False)


def test_a_module_call_in_an_explicit_phase_is_not_a_forward_pass() -> None:
    run = Script()
    run.do("loader module")
    run.splitter.enter("main", "optimizer", run.now_ns)
    began = list(run.began)
    run.do("module")
    assert run.began == began


def test_a_model_call_ends_a_step_only_in_the_training_thread_and_outside_phases() -> None:
    """GIVEN batches without gradients THEN each call of the model ends a step, except calls in other threads or inside a
    reported phase."""
    run = Script()
    run.do("evaluated evaluated")
    assert len(run.steps) == 1
    run.do("evaluated evaluated", thread="prefetcher")
    assert len(run.steps) == 1 and not run.splitter.is_in_module
    run.splitter.enter("main", "loss", run.now_ns)
    run.do("evaluated evaluated")
    run.splitter.leave("main", "loss", run.now_ns)
    assert len(run.steps) == 1
    run.do("evaluated")
    assert len(run.steps) == 2


def test_a_step_stores_the_end_time_of_its_last_phase() -> None:
    run = Script()
    run.do("loader module loss backward optimizer")
    assert run.cut_steps[0].left_ns == run.cut_steps[0].end_ns == 54
    run = Script()
    run.do("loader evaluated loader")
    assert run.cut_steps[0].left_ns is None


def test_a_backward_pass_makes_a_step_a_training_step() -> None:
    run = Script()
    run.do("loader")
    assert run.splitter.is_undecided
    run.do("evaluated")
    assert not run.splitter.is_undecided
    run.do("backward")
    assert run.evaluates == [True, False]


def test_a_training_step_without_an_optimizer_ends_before_the_next_batch() -> None:
    """The script updates its weights itself after the backward pass."""
    steps = steps_of("loader module backward op loader module backward op loader", optimizer=False)
    assert steps == ["train: loader 11 forward 11 backward 10 other 12"] * 2


def test_no_forward_phase_is_recorded_if_the_script_begins_with_a_backward_pass() -> None:
    assert steps_of("backward optimizer") == ["train: backward 10 optimizer 11"]
    assert steps_of("backward optimizer backward optimizer")[1] == "train: forward 1 backward 10 optimizer 11"

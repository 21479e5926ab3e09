"""Tests where steps end for each kind of loop, and for random sequences of loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from traces.script.step_rule import Optimizers, StepEnd, StepSplitter

MODEL, OTHER, LOSS = 1, 2, 3
FUNCTION = -4  # the number of a compiled function
ENDS = {StepEnd.NOTHING: "", StepEnd.TRAINING: "T", StepEnd.EVALUATION: "E"}


class _Optimizer:
    pass


_OPTIMIZER, ONE = _Optimizer(), Optimizers()
ONE.add(_OPTIMIZER)


@dataclass
class Script:
    """A running script. `ended` contains "T" for each training step that ended, and "E" for each evaluation step."""

    splitter: StepSplitter = field(default_factory=lambda: StepSplitter(ONE))
    ended: str = ""
    events: list[str] = field(default_factory=list)

    def _now(self, event: str, kind: str) -> None:
        self.ended += kind
        self.events += ["|"] * len(kind) + [event]

    def load(self) -> None:
        self._now("load", ENDS[self.splitter.loader_entered()])

    def exhaust(self) -> None:
        self.load()
        self.splitter.loader_exhausted()

    def copy(self) -> None:
        self._now("copy", ENDS[self.splitter.copied()])

    def call(self, *modules: int, grad: bool = True) -> None:
        for module in modules:
            self._now(f"call {module}", ENDS[self.splitter.module_called(module, grad)])

    def evaluate(self, *modules: int) -> None:
        self.call(*modules, grad=False)

    def train(self, *modules: int) -> None:
        self.call(*modules)
        self._now("backward", ENDS[self.splitter.backward()])

    def step(self, first: bool = True) -> None:
        if self.splitter.optimizer_stepped(first):
            self.ended += "T"
            self.events += ["step", "|"]


def batches(script: Script, count: int, body: Callable[[], None]) -> None:
    for _ in range(count):
        script.load()
        body()
    script.exhaust()


def test_a_training_loop_ends_a_step_at_each_optimizer_step() -> None:
    script = Script()

    def body() -> None:
        script.train(MODEL, LOSS)
        script.step()

    for _ in range(2):
        batches(script, 3, body)
    assert script.ended == "T" * 6


def test_if_optimizers_step_in_backward_hooks_the_next_forward_pass_ends_the_step() -> None:
    """GIVEN parameters whose hooks call optimizers THEN a step ends before the next model call, and the last step ends with the
    script."""
    script = Script()
    for _ in range(3):
        script.train(MODEL)
        script.splitter.stepped_in_backward()
    assert script.ended == "TT" and script.splitter.at_stop == StepEnd.TRAINING


def test_an_optimizer_after_backward_ends_steps_even_if_others_run_in_backward_hooks() -> None:
    """GIVEN an optimizer that is called after every second batch THEN two accumulated batches are one step."""
    script = Script()
    for accumulated in (1, 2, 2):
        for _ in range(accumulated):
            script.train(MODEL)
            script.splitter.stepped_in_backward()
        script.step()
    assert script.ended == "TTT"


def test_several_backward_passes_before_an_optimizer_step_form_one_step() -> None:
    script = Script()
    for _ in range(2):
        for _ in range(4):
            script.load()
            script.train(MODEL, LOSS)
        script.step()
    assert script.ended == "TT"


def test_a_step_with_accumulated_gradients_and_an_evaluated_batch_is_a_training_step() -> None:
    """GIVEN accumulated gradients without an optimizer step WHEN the script evaluates a batch THEN the step that contains both
    is a training step."""
    script = Script()
    batches(script, 3, lambda: script.train(MODEL, LOSS))
    script.step()
    batches(script, 1, lambda: script.train(MODEL, LOSS))
    script.load()
    script.evaluate(MODEL)
    assert script.splitter.at_stop == StepEnd.TRAINING
    batches(script, 2, lambda: script.evaluate(MODEL))
    assert script.ended == "TTEE"


def test_only_the_first_of_two_optimizers_ends_steps() -> None:
    script = Script()
    for _ in range(3):
        script.load()
        script.train(OTHER, LOSS)
        script.step(first=True)
        script.train(MODEL, OTHER, LOSS)
        script.step(first=False)
    script.exhaust()
    assert script.ended == "TTT"


def test_validation_after_two_optimizers_belongs_to_no_training_step() -> None:
    script = Script()
    for _ in range(2):
        script.load()
        script.train(OTHER, LOSS)
        script.step(first=True)
        script.train(MODEL, OTHER, LOSS)
        script.step(first=False)
        script.exhaust()
        batches(script, 3, lambda: script.evaluate(MODEL, LOSS))
    assert script.ended == "TEEETEEE"


def test_validation_steps_between_epochs_end_when_the_loader_is_called() -> None:
    script = Script()

    def body() -> None:
        script.train(MODEL, LOSS)
        script.step()

    for _ in range(2):
        batches(script, 2, body)
        batches(script, 2, lambda: script.evaluate(MODEL, LOSS))
    assert script.ended == "TTEETTEE"
    boundaries = "".join("|" if event == "|" else event[0] for event in script.events)
    assert boundaries.startswith("lccbs|lccbs|llcc|lcc|llccbs|")


def test_validation_steps_without_a_loader_end_at_the_next_model_call() -> None:
    script = Script()
    for _ in range(3):
        script.train(MODEL, LOSS)
        script.step()
    for _ in range(3):
        script.evaluate(MODEL, OTHER, LOSS)
    script.train(MODEL, LOSS)
    script.step()
    assert script.ended == "TTTEEET"


def test_two_models_called_on_one_batch_without_gradients_share_a_step() -> None:
    script = Script()
    for _ in range(3):
        script.evaluate(MODEL, OTHER, OTHER)
    assert script.ended == "EE" and script.splitter.evaluating


@pytest.mark.parametrize("loader", [True, False])
def test_an_inference_script_consists_of_evaluation_steps(loader: bool) -> None:
    script = Script()
    for _ in range(4):
        if loader:
            script.load()
        script.evaluate(MODEL)
    assert script.ended == "EEE" and script.splitter.evaluating


def test_without_an_optimizer_each_evaluation_of_the_same_batch_is_a_step() -> None:
    script = Script(StepSplitter(Optimizers()))
    script.load()
    for _ in range(5):
        script.evaluate(MODEL)
    assert script.ended == "EEEE"


def test_inference_with_gradients_enabled_is_detected_at_the_second_batch() -> None:
    script = Script()
    batches(script, 4, lambda: script.call(MODEL))
    assert script.ended == "EEEE"
    boundaries = "".join("|" if event == "|" else event[0] for event in script.events)
    assert boundaries == "lcl|c|lc|lc|l"


def test_a_forward_pass_with_gradients_does_not_end_a_training_step() -> None:
    script = Script()
    for _ in range(3):
        script.call(MODEL)
    assert script.ended == "" and not script.splitter.evaluating
    script.train(MODEL)
    script.step()
    batches(script, 3, lambda: script.call(MODEL))
    assert script.ended == "T"


def test_a_model_call_before_the_first_batch_does_not_end_a_step() -> None:
    script = Script()
    script.call(MODEL)
    script.load()
    script.train(MODEL)
    script.step()
    assert script.ended == "T"


def test_a_teacher_model_called_without_gradients_belongs_to_the_training_step() -> None:
    script = Script()

    def body() -> None:
        script.evaluate(OTHER)
        script.evaluate(OTHER)
        script.train(MODEL, LOSS)
        script.step()

    batches(script, 3, body)
    assert script.ended == "TTT"
    batches(script, 2, lambda: script.evaluate(MODEL))
    assert script.ended == "TTTEE"


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("called", [(MODEL,), (OTHER,), (MODEL, OTHER), (MODEL, MODEL, MODEL)])
def test_a_model_called_without_gradients_inside_a_training_step_makes_no_evaluation_step(
    copies: bool, called: tuple[int, ...]
) -> None:
    """GIVEN a batch that was trained on WHEN the script calls a model for the same batch without gradients THEN the call adds
    no step. A call for a new batch adds an evaluation step."""
    script = Script()

    def body() -> None:
        script.train(MODEL)
        script.step()
        script.evaluate(*called)

    if copies:
        for _ in range(3):
            script.copy()
            body()
            script.copy()
            script.evaluate(*called)
        assert script.ended == ("TETET" if called[0] == MODEL else "TTT")
    else:
        batches(script, 3, body)
        assert script.ended == "TTT"
        batches(script, 2, lambda: script.evaluate(*called))
        assert script.ended == "TTTEE"


@pytest.mark.parametrize("copies", [False, True])
def test_validation_with_data_that_stays_on_the_gpu_is_one_evaluation_step(copies: bool) -> None:
    """GIVEN epochs of three training steps WHEN the script validates two batches that stay on the GPU after each epoch THEN
    each validation is one step."""
    script = Script()
    for _ in range(4):
        for _ in range(3):
            script.copy() if copies else script.load()
            script.train(MODEL)
            script.step()
        script.evaluate(MODEL, MODEL)
    script.copy()
    assert script.ended == "TTTE" * 4


@pytest.mark.parametrize(("is_metric", "ends"), [(False, StepEnd.EVALUATION), (True, StepEnd.NOTHING)])
def test_samples_generated_at_the_end_of_a_script_are_one_evaluation_step(is_metric: bool, ends: StepEnd) -> None:
    """GIVEN a script that calls its model after the last training step without a new batch THEN these calls are one evaluation
    step. If the script also calls the model after each training step, for example for a metric, there is no evaluation step."""
    script = Script()
    for _ in range(3):
        script.load()
        script.train(MODEL)
        script.step()
        if is_metric:
            script.evaluate(MODEL)
    script.evaluate(MODEL, MODEL)
    assert (script.ended, script.splitter.at_stop) == ("TTT", ends)


@pytest.mark.parametrize("copies", [False, True])
def test_validation_batches_do_not_belong_to_the_next_training_step(copies: bool) -> None:
    """GIVEN training with a batch that stays on the GPU WHEN validation loads or copies batches THEN these batches do not
    belong to the next training step."""
    script = Script()
    script.train(MODEL)
    script.step()
    if copies:
        for _ in range(2):
            script.copy()
            script.evaluate(MODEL)
    else:
        batches(script, 2, lambda: script.evaluate(MODEL))
    script.train(MODEL)
    script.step()
    script.evaluate(MODEL, MODEL, MODEL)
    script.train(MODEL)
    assert script.ended == "TEETEEE"


@pytest.mark.parametrize("teacher", [False, True])
def test_evaluation_of_another_module_ends_before_the_next_training_batch(teacher: bool) -> None:
    """GIVEN training steps that copy two tensors each WHEN the script evaluates three batches with another module THEN these
    are three evaluation steps. If training steps also begin with a call of the other module, such calls add no step."""
    script = Script()
    for _ in range(2):
        for _ in range(2):
            if teacher:
                script.copy()
                script.evaluate(OTHER)
            script.copy()
            script.copy()
            script.train(MODEL)
            script.step()
        for _ in range(3):
            script.copy()
            script.evaluate(OTHER)
    assert script.ended == "TTEEETTEE"


def test_without_new_batches_each_call_without_gradients_is_an_evaluation_step() -> None:
    """GIVEN data that was copied to the GPU before the training THEN each call of the model without gradients is a step."""
    script = Script()
    for _ in range(2):
        script.train(MODEL)
        script.step()
        script.evaluate(MODEL, MODEL, MODEL)
    script.train(MODEL)
    assert script.ended == "TEEETEEE"


@pytest.mark.parametrize("grad", [True, False])
def test_inference_steps_end_at_module_calls_rather_than_compiled_functions(grad: bool) -> None:
    """GIVEN inference WHEN a compiled function creates a mask once, or once for each batch THEN each call of the model is a
    step."""
    once, each = Script(StepSplitter(Optimizers())), Script(StepSplitter(Optimizers()))
    once.call(FUNCTION, grad=grad)
    for script in (once, each):
        for _ in range(4):
            script.evaluate(*([FUNCTION] if script is each else []), MODEL)
    assert (once.ended, each.ended) == ("EEE", "EEE")


def test_evaluation_after_training_is_found_although_a_compiled_function_runs_first() -> None:
    """GIVEN training without an optimizer WHEN a compiled function creates a mask for each evaluated batch THEN each of these
    batches is a step."""
    script = Script(StepSplitter(Optimizers()))
    batches(script, 3, lambda: script.train(MODEL))
    batches(script, 2, lambda: script.evaluate(FUNCTION, MODEL))
    assert script.ended == "TTTEE"


def test_inference_by_compiled_functions_is_divided_into_steps() -> None:
    """GIVEN text generation WHEN one compiled function reads the prompt, and another one generates two tokens THEN each prompt
    is a step."""
    script = Script(StepSplitter(Optimizers()))
    for _ in range(3):
        script.evaluate(FUNCTION, FUNCTION - 1, FUNCTION - 1)
    assert script.ended == "EE"


def test_a_step_counts_as_evaluation_until_a_module_is_called_with_gradients() -> None:
    splitter = StepSplitter(ONE)
    assert not splitter.evaluating
    splitter.module_called(MODEL, False)
    assert splitter.evaluating
    splitter.module_called(OTHER, True)
    assert not splitter.evaluating
    splitter.loader_entered()
    splitter.module_called(MODEL, False)
    splitter.backward()
    assert not splitter.evaluating


# Each function runs one kind of loop and returns the expected steps. The last event of a loop is a request for a batch or an
# optimizer step.
def _plain(script: Script, n: int) -> str:
    for _ in range(n):
        script.load()
        script.train(MODEL, LOSS)
        script.step()
    return "T" * n


def _accumulating(script: Script, n: int) -> str:
    for _ in range(n):
        script.load()
        script.train(MODEL, LOSS)
    script.step()
    return "T"


def _distilling(script: Script, n: int) -> str:
    for _ in range(n):
        script.load()
        script.evaluate(OTHER)
        script.train(MODEL, LOSS)
        script.step()
    return "T" * n


def _adversarial(script: Script, n: int) -> str:
    for _ in range(n):
        script.load()
        script.train(OTHER)
        script.step()
        script.train(MODEL, OTHER)
        script.step(first=False)
    return "T" * n


def _validating(script: Script, n: int) -> str:
    script.exhaust()  # the training data has no more batches
    batches(script, n, lambda: script.evaluate(MODEL, LOSS))
    return "E" * n


def _sampling(script: Script, n: int) -> str:
    script.exhaust()
    for _ in range(n):
        script.evaluate(MODEL)
    has_trained = "T" in script.ended
    script.load()
    return "E" if has_trained else "E" * n


@given(
    st.lists(
        st.tuples(
            st.sampled_from([_plain, _accumulating, _distilling, _adversarial, _validating, _sampling]), st.integers(1, 4)
        ),
        max_size=12,
    )
)
def test_any_sequence_of_training_and_evaluation_is_divided_into_steps(
    parts: list[tuple[Callable[[Script, int], str], int]],
) -> None:
    script, expected = Script(), ""
    for part, n in parts:
        expected += part(script, n)
    assert script.ended == expected
    # AND no evaluation step ends with a batch that was trained on, and no training step contains two batches that were only
    # evaluated
    steps = "".join("|" if event == "|" else event[0] for event in script.events).split("|")
    assert len(steps) == len(expected) + 1
    for kind, events in zip(expected, steps, strict=False):
        *before, last = events.split("l")
        assert ("b" in last) is (kind == "T"), events
        assert kind == "T" or all("c" not in batch or "b" in batch for batch in before), events


@example(["first", "load", "first", "grad", "plain", "load", "load"])
@given(st.lists(st.sampled_from(["load", "exhaust", "grad", "plain", "backward", "first", "second"]), max_size=40))
def test_a_batch_with_a_backward_pass_never_ends_an_evaluation_step(events: list[str]) -> None:
    splitter = StepSplitter(ONE)
    # Both flags are reset when a step ends or a batch is loaded.
    trained = called = False
    for event in events:
        if event in ("load", "exhaust"):
            ended = splitter.loader_entered()
            assert not (ended and trained) and (called or not ended)
            trained = called = False
            if event == "exhaust":
                splitter.loader_exhausted()
        elif event in ("grad", "plain"):
            ended = splitter.module_called(MODEL, event == "grad")
            assert not (ended and trained)
            trained, called = trained and not ended, True
        elif event == "backward":
            splitter.backward()
            trained = True
        elif splitter.optimizer_stepped(event == "first"):
            assert not splitter.evaluating
            trained = called = False


def test_a_script_without_backward_passes_is_one_evaluation_step() -> None:
    without = StepSplitter(Optimizers())
    without.module_called(MODEL, True)
    assert without.at_stop is StepEnd.EVALUATION
    about_to_train = StepSplitter(ONE)
    about_to_train.module_called(MODEL, True)
    assert about_to_train.at_stop is StepEnd.NOTHING


@pytest.mark.parametrize(
    ("module", "grad", "ends"),
    [(MODEL, False, "T"), (MODEL, True, "T"), (OTHER, True, "T"), (OTHER, False, "")],
)
def test_without_an_optimizer_the_next_forward_pass_ends_a_step(
    module: int, grad: bool, ends: str
) -> None:
    """GIVEN a script that updates its weights without an optimizer WHEN a module is called after the backward pass THEN the
    step ends."""
    script = Script(StepSplitter(Optimizers()))
    script.train(MODEL)
    script.call(module, grad=grad)
    assert script.ended == ends


def test_one_backward_pass_without_an_optimizer_is_not_a_complete_step() -> None:
    script = Script(StepSplitter(Optimizers()))
    script.train(MODEL)
    assert script.splitter.at_stop == StepEnd.NOTHING
    script.train(MODEL)
    assert (script.ended, script.splitter.at_stop) == ("T", StepEnd.TRAINING)


@pytest.mark.parametrize(
    ("optimizers", "first"),
    [
        ("aaaabbbbcccc", "111111111111"),  # optimizers run one after the other, for example Adam and then LBFGS
        ("aaaabbbb" * 3, "11111111" * 3),  # two optimizers alternate after each epoch
        ("aaaa" + "bcbcbc" + "aaaa", "1111" + "101010" + "1111"),  # an encoder is trained before a GAN
        ("ab" * 4, "10" * 4),
        ("abbbbb" * 4, "100000" * 4),  # the critic makes five steps for each step of the generator
        ("aaaaab" * 4, "111111" + "111110" * 3),  # the critic is first, and the first step of the generator also counts
        ("aabc" * 3, "1110" + "1100" * 2),  # an actor-critic method with delayed updates
        ("aabcbc" * 3, "111010" + "110000" * 2),  # an actor-critic method that makes two updates after the delay
        ("abcbca" * 4, "100001" + "110101" + "100001" * 2),
        ("aaabbb" * 3, "111111" * 3),
        ("aaaa" + "ba" * 4, "1111" + "11" + "01" * 3),  # the generator is trained before the GAN
        ("ab" + "b" * 10, "10" + "0" * 7 + "111"),  # the first optimizer makes only one step
        ("abbbbb" + "b" * 6 + "abbbbb" * 2, "100000" + "000111" + "111111" + "011111"),
        ("abbbbb" * 2 + "b" * 4 + "ab", "100000" * 2 + "0000" + "10"),
        ("abcdefghijklmnop" * 3, "1000000000000000" * 3),  # each layer has one optimizer
    ],
)
def test_an_optimizer_that_replaces_the_first_optimizer_becomes_the_first(optimizers: str, first: str) -> None:
    """Each letter stands for one call of an optimizer's `step` method."""
    known, made = Optimizers(), {letter: _Optimizer() for letter in optimizers}
    assert "".join(str(int(known.is_first(made[letter]))) for letter in optimizers) == first


@pytest.mark.parametrize(
    ("optimizers", "loads", "goes_back", "ends"),
    [
        (0, False, True, True),
        (0, True, True, False),
        (1, False, True, False),
        (0, False, False, False),
        (1, True, False, False),
    ],
)
def test_without_modules_and_optimizer_the_next_backward_pass_ends_a_step(
    optimizers: int, loads: bool, goes_back: bool, ends: bool
) -> None:
    splitter = StepSplitter(ONE if optimizers else Optimizers())
    if loads:
        splitter.loader_entered()
    if goes_back:
        splitter.backward()
    assert splitter.ends_at_backward is ends

"""Tests what the wrappers of PyTorch functions report to a listener. Fakes replace classes of torch."""

from __future__ import annotations

import functools
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from traces.script.patching import PATCHES
from traces.script.script_hooks import SCRIPT_CALLS, ScriptCalls, ScriptHooks, tensors_in
from traces.script.step_rule import Optimizers


class Listener:
    """Stores the events that the wrappers report."""

    module_marks: Any = None

    def __init__(self, is_open: bool = True) -> None:
        self.seen: list[object] = []
        self.workload: Any = SimpleNamespace(
            is_open=is_open,
            on_every_call=None,
            batch_loaded=lambda size: self.seen.append(("batch", size)),
            module_called=lambda module, inputs, autocast: self.seen.append(("inputs", list(inputs), autocast)),
            optimizer_stepped=lambda name: self.seen.append(("class", name)),
        )

    def enter_phase(self, name: str) -> None:
        self.seen.append(f"enter {name}")

    def leave_phase(self, name: str, error: BaseException | None = None) -> None:
        self.seen.append(f"leave {name}")

    def optimizer_stepped(self, is_first: bool) -> None:
        self.seen.append(("stepped", is_first))

    def autograd_recorded(self, uses_gradients: bool) -> None:
        self.seen.append(("autograd", uses_gradients))

    def module_called(self, number: int, grad_enabled: bool) -> None:
        self.seen.append(("module", grad_enabled))

    def modules_left(self) -> None:
        self.seen.append("left")

    def module_returned(self) -> None:
        self.seen.append("returned")


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    yield
    PATCHES.undo()
    SCRIPT_CALLS.now.nodes = None


def hooks(fake_torch: object, listener: object) -> ScriptHooks:
    return ScriptHooks(fake_torch, lambda: listener, Optimizers())  # type: ignore[arg-type, return-value]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_tensors_of_nested_containers_are_found() -> None:
    one, two = torch.ones(1), torch.ones(2)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    batch = {"a": [one, "text"], "b": (torch.eye(2).to_sparse(), nested), "c": SimpleNamespace(x=two, y=[one])}
    assert [id(tensor) for tensor in tensors_in(torch, batch)] == [id(one), id(two)]


class _FailingMapping(UserDict[str, torch.Tensor]):
    def __iter__(self) -> Iterator[str]:
        raise OSError("the file of the keys is missing")


class _FailingList(list[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        raise ValueError("this list cannot be read twice")


def test_tensors_are_found_without_calling_methods_of_the_script() -> None:
    """Methods of a batch class may load files, or may raise errors before the script has prepared the batch."""
    one, two = torch.ones(1), torch.ones(2)
    assert [id(tensor) for tensor in tensors_in(torch, [_FailingMapping(a=one), _FailingList([two])])] == [id(one), id(two)]


def test_a_batch_may_contain_itself() -> None:
    batch: dict[str, Any] = {"x": torch.ones(2), "parts": []}
    batch["parts"].append(batch)
    assert [id(tensor) for tensor in tensors_in(torch, batch)] == [id(batch["x"])]


@pytest.mark.parametrize(("nodes", "now", "seen"), [(None, 5, []), (5, 5, []), (5, 6, [("autograd", True)])])
def test_ops_that_autograd_recorded_since_a_backward_pass_are_reported(
    nodes: int | None, now: int, seen: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener: Any = Listener()
    monkeypatch.setattr(SCRIPT_CALLS.now, "nodes", nodes)
    monkeypatch.setattr(SCRIPT_CALLS.now, "built_graph", True)
    hooks(SimpleNamespace(autograd=SimpleNamespace(_get_sequence_nr=lambda: now)), listener).report_forward_pass(listener)
    assert listener.seen == seen


@pytest.mark.parametrize(
    ("listener", "batch", "seen"),
    [
        (Listener(), [torch.ones(3), torch.ones(2)], [("batch", 20)]),
        (Listener(), ["text"], [("batch", None)]),
        (Listener(is_open=False), [torch.ones(3)], []),
        (None, [torch.ones(3)], None),
    ],
)
def test_the_size_of_a_loaded_batch_is_reported_while_the_workload_is_observed(
    listener: Listener | None, batch: list[object], seen: list[object] | None
) -> None:
    assert hooks(torch, listener).loading(lambda iterator: next(iterator))(iter([batch])) is batch
    assert (listener and listener.seen) == (None if seen is None else ["enter loader", "leave loader", *seen])


def test_the_batches_of_a_data_loader_inside_the_data_set_are_not_reported() -> None:
    """GIVEN a data set that reads its samples with another DataLoader THEN only the outer DataLoader reports a batch."""
    listener = Listener()
    load = hooks(torch, listener).loading(lambda iterator: next(iterator))

    def samples() -> Iterator[torch.Tensor]:
        load(iter([torch.ones(3)]))
        with pytest.raises(StopIteration):
            load(iter([]))
        yield torch.zeros(2)

    load(samples())
    assert listener.seen == ["enter loader", "leave loader", ("batch", 8)]


def optimizer_class(listener: object, task: int = -1, **wrappers: Any) -> Any:
    """Return a fake SGD class that is patched by the hooks. `task` is the number of the running backward pass."""

    class Optimizer:
        def __init__(self) -> None:
            self._patch_step_function()

        def _patch_step_function(self) -> None:
            own: Any = type(self)
            if not hasattr(own.step, "hooked"):
                own.step = self.profile_hook_step(own.step)
                own.step.hooked = True

        @staticmethod
        def profile_hook_step(step: Callable[..., object]) -> Callable[..., object]:
            return lambda *args, **kwargs: step(*args, **kwargs)

        def zero_grad(self) -> None: ...

    class SGD(Optimizer):
        def step(self, closure: Callable[[], object] | None = None) -> object:
            return "no closure" if closure is None else closure()

    fake = SimpleNamespace(_current_graph_task_id=lambda: task)
    hooks(SimpleNamespace(_C=fake, optim=SimpleNamespace(Optimizer=Optimizer)), listener).optimizers(**wrappers)
    return SGD


ENTER, LEAVE = "enter optimizer", "leave optimizer"


@pytest.mark.parametrize(
    ("is_open", "task", "first", "second"),
    [
        (True, -1, [("class", "SGD"), ("stepped", True)], [("stepped", False)]),
        (False, -1, [("stepped", True)], [("stepped", False)]),
        (True, 3, [("stepped", False)], [("stepped", False)]),  # a parameter's hook calls the optimizer in a backward pass
    ],
)
def test_optimizer_steps_are_reported_with_whether_the_optimizer_is_the_first(
    is_open: bool, task: int, first: list[object], second: list[object]
) -> None:
    listener = Listener(is_open)
    make = optimizer_class(listener, task)
    one, other = make(), make()
    one.step()
    other.step()
    assert listener.seen == [ENTER, LEAVE, *first, ENTER, LEAVE, *second]


@pytest.mark.parametrize(
    ("given", "named", "result", "calls_closure"),
    [
        ((), {}, "no closure", False),
        ((None,), {}, "no closure", False),
        ((), {"closure": None}, "no closure", False),
        ((lambda: "loss",), {}, "loss", True),
        ((), {"closure": lambda: "loss"}, "loss", True),
    ],
)
def test_a_closure_interrupts_the_optimizer_phase(
    given: tuple[Any, ...], named: dict[str, Any], result: str, calls_closure: bool
) -> None:
    listener, wrapped = Listener(), list[object]()

    def closure(call: Any) -> Any:
        wrapped.append(call)
        return call

    assert optimizer_class(listener, closure=closure)().step(*given, **named) == result
    assert listener.seen[:-2] == [ENTER, LEAVE] * (1 + calls_closure) and len(wrapped) == calls_closure


def test_an_optimizer_step_runs_inside_the_given_context_manager() -> None:
    entered: list[str] = []

    @contextmanager
    def noted() -> Iterator[None]:
        entered.append("entered")
        yield

    contexts = iter((None, noted()))
    optimizer = optimizer_class(Listener(), whole_step=lambda: next(contexts))()
    assert (optimizer.step(), entered) == ("no closure", [])
    assert (optimizer.step(), entered) == ("no closure", ["entered"])


class Module:
    def __init__(self, inner: Module | None = None) -> None:
        self.inner = inner


@pytest.mark.parametrize(("is_open", "task"), [(True, -1), (False, -1), (True, 3)])
def test_each_module_call_is_reported_with_its_number_and_the_launch_count(is_open: bool, task: int) -> None:
    """GIVEN module 100, which launches a kernel and then calls module 200 THEN each call is reported as the module's number
    plus the number of launches before the call."""
    inner = Module()
    outer, notes, launches = Module(inner), list[int](), [1, 2]
    numbers = {id(outer): 100}

    def number_of_new(module: object) -> int:
        return 200 if module is inner else 900

    listener: Any = Listener(is_open)
    listener.module_marks = lambda module: (notes.append, launches, numbers.get, number_of_new)
    # `task` is the number of the running backward pass. Modules that are called in a backward pass do not belong to the
    # workload.
    c = SimpleNamespace(_current_graph_task_id=lambda: task, _get_tracing_state=lambda: None, _set_tracing_state=None)
    c.DisableTorchFunction = torch._C.DisableTorchFunction
    fake = SimpleNamespace(Tensor=torch.Tensor, strided=torch.strided, _C=c, _guards=torch._guards)
    fake.is_grad_enabled, fake.is_autocast_enabled, fake.autocast = (lambda: True), (lambda: False), torch.autocast

    def call(module: Module, x: object) -> str:
        launches.append(3)
        if module.inner is not None:
            called(module.inner, x)
        return "result"

    called = hooks(fake, listener).module_call(call)
    assert called(outer, torch.ones(4, 2)) == "result"
    assert notes == [100 + 2, 200 + 3, ~4, ~4]
    # WHEN module 200 calls module 100 THEN both keep their numbers
    inner.inner, outer.inner = outer, None
    notes.clear()
    called(inner, torch.ones(4, 2))
    assert notes == [200 + 4, 100 + 5, ~6, ~6]
    of_workload = [("inputs", [((4, 2), "float32")], "off")] * (is_open and task == -1)
    assert listener.seen == [("module", True), *of_workload, "left", "returned"] * 2


@pytest.mark.parametrize(
    ("around", "device", "enabled", "expected"),
    [
        (False, "cuda", True, "float16"),
        (True, "cuda", False, "off"),
        (True, "cpu", True, "float16"),
        (False, "cpu", True, "off"),
    ],
)
def test_autocast_may_be_used_as_a_decorator_of_forward(
    around: bool, device: str, enabled: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a model whose `forward` has the decorator `torch.autocast` WHEN the model or DistributedDataParallel is called THEN
    the dtype of autocast is reported."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    listener = Listener()
    model: Any = torch.nn.Linear(2, 2)
    wrapper: Any = torch.nn.Module()
    decorated = torch.autocast(device, torch.float16, enabled=enabled)(model.forward)
    model.forward = functools.wraps(decorated)(lambda x: decorated(x).float())
    wrapper.module, wrapper.forward = model, lambda x: model(x)
    hooks(torch, listener).module_calls()
    for called in (model, wrapper):
        with torch.autocast("cuda", torch.float16, enabled=around):
            called(torch.ones(1, 2))
    assert [of[2] for of in listener.seen if of[0] == "inputs"] == [expected] * 2  # type: ignore[index]


def test_a_recorder_and_a_replay_in_one_process_both_see_each_call() -> None:
    """`trace record --on` installs the wrappers of the replay and the wrappers of the recorder."""
    listeners: list[Any] = [Listener(is_open=False), Listener(is_open=False)]
    load: Any = next
    for number, calls in enumerate((SCRIPT_CALLS, ScriptCalls())):
        made = ScriptHooks(torch, functools.partial(listeners.__getitem__, number), Optimizers(), calls)
        made.module_calls()
        load = made.loading(load)
    torch.nn.Linear(2, 2)(load(iter([torch.ones(1, 2)])))
    assert listeners[0].seen == listeners[1].seen == ["enter loader", "leave loader", ("module", True), "returned"]


def test_calling_a_compiled_function_is_reported_once_as_the_outermost_module_call() -> None:
    """GIVEN a compiled function that calls modules, in a script without an optimizer."""
    listener, layer = Listener(is_open=False), torch.nn.Linear(2, 2)
    hooks(torch, listener).module_calls()
    function = torch.compile(lambda x: layer(layer(x)), backend="eager")
    with torch.no_grad():
        function(torch.ones(1, 2))
    assert listener.seen == [("module", False), "returned"]
    # WHEN the compiled function fails THEN the next call is reported as an outermost call again
    with pytest.raises(RuntimeError):
        function(torch.ones(1, 3))
    listener.seen.clear()
    # WHEN a module calls a compiled function THEN only the module is reported
    outer = torch.nn.Module()
    outer.forward = function
    outer(torch.ones(1, 2))
    assert listener.seen == [("module", True), "returned"]


def test_a_compiled_function_call_is_reported_if_no_call_inside_it_is_reported() -> None:
    """GIVEN compiled functions that compute a loss, run a backward pass, update weights or call a module THEN a function is
    reported only if nothing inside is reported."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer, listener, optimizers = torch.optim.SGD([weight], 0.1), Listener(is_open=False), Optimizers()
    hooks = ScriptHooks(torch, lambda: listener, optimizers)  # type: ignore[arg-type, return-value]
    optimizers.add(optimizer)
    hooks.backward()
    hooks.optimizers()
    hooks.module_calls()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return (weight * x).sum()

    def seen(call: Callable[[], object]) -> list[object]:
        listener.seen.clear()
        call()
        return list(listener.seen)

    def go_back() -> None:
        torch.autograd.backward(loss_of(torch.ones(2)))

    def train_or_validate() -> None:
        (eagerly(go_back) if torch.is_grad_enabled() else loss_of(torch.ones(2)))

    eagerly: Any = torch.compiler.disable(lambda call: call())  # type: ignore[no-untyped-call]
    layer, both = torch.nn.Linear(2, 2), torch.compile(train_or_validate, backend="eager")
    calls_module = torch.compile(lambda: eagerly(lambda: layer(torch.ones(2))), backend="eager")
    loss = torch.compile(loss_of, backend="eager")
    train = torch.compile(lambda: eagerly(go_back), backend="eager")
    update = torch.compile(lambda: eagerly(optimizer.step), backend="eager")
    call = [("module", True), "returned"]
    assert seen(lambda: loss(torch.ones(2))) == call  # the call is reported after the function returned
    assert seen(lambda: loss(torch.ones(2))) == [("autograd", True), *call]
    with torch.no_grad():
        assert seen(lambda: loss(torch.ones(2))) == [("module", False), "returned"]
    for _ in range(2):
        assert {"enter backward", ("module", True)} & set(seen(train)) == {"enter backward"}
        assert {("stepped", True), ("module", True)} & set(seen(update)) == {("stepped", True)}
        assert seen(calls_module).count(("module", True)) == 1  # the module is reported, but not the function
        assert ("module", True) not in seen(both)
        with torch.no_grad():
            assert seen(both) == [("module", False), "returned"]


def test_a_compiled_function_is_reported_although_its_compilation_calls_modules() -> None:
    """GIVEN a script with an optimizer WHEN it calls a compiled function with `torch.cond`, and the compilation calls both
    branches as modules THEN each call of the function is reported once."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
    listener, optimizers = Listener(is_open=False), Optimizers()
    optimizers.add(optimizer)
    ScriptHooks(torch, lambda: listener, optimizers).module_calls()  # type: ignore[arg-type, return-value]
    compiler: Any = aot_autograd(fw_compiler=lambda _graph, _inputs: make_boxed_func(lambda x: (x,)))
    choose = torch.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), backend=compiler)
    for _ in range(3):
        listener.seen.clear()
        with torch.no_grad():
            choose(torch.ones(2))
        assert listener.seen == [("module", False), "returned"]


def test_without_an_optimizer_each_call_of_a_compiled_function_is_reported() -> None:
    weight, listener = torch.ones(2, requires_grad=True), Listener(is_open=False)
    made = hooks(torch, listener)
    made.backward()
    made.module_calls()
    eagerly: Any = torch.compiler.disable(lambda: torch.autograd.backward((weight * 2).sum()))  # type: ignore[no-untyped-call]
    train = torch.compile(lambda: eagerly(), backend="eager")
    for _ in range(3):
        train()
    assert listener.seen.count(("module", True)) == 3


def test_a_function_has_one_number_even_if_it_is_compiled_twice() -> None:
    numbers: list[int] = []
    listener: Any = Listener(is_open=False)
    listener.module_called = lambda number, grad_enabled: numbers.append(number)
    hooks(torch, listener).module_calls()

    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    for function in (double, double, lambda x: x * 2):
        torch.compile(function, backend="eager")(torch.ones(1))
    assert len(set(numbers)) == 2 and numbers[0] == numbers[1] < 0

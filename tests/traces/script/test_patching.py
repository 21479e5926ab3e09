"""Tests that wrappers of PyTorch functions behave like the original functions, and that patches can be undone."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import FunctionType, ModuleType
from typing import Any

import pytest

from traces.script import patching
from traces.script.patching import OutermostCalls, Patches, PhaseScope, argument, around, patch_everywhere, when_imported


def test_a_wrapper_has_the_default_arguments_of_its_function() -> None:
    """torch.compile reads the default arguments from the wrapper, and its guards check them. Calls of the wrapper use the
    defaults of the original."""

    def original(x: int, y: int = 2, *, z: int = 3) -> tuple[int, int, int]:
        return x, y, z

    wrapper: Any = around(original, lambda call, *args, **kwargs: call(*args, **kwargs))
    assert isinstance(wrapper, FunctionType)
    assert (wrapper.__defaults__, wrapper.__kwdefaults__) == ((2,), {"z": 3})
    assert (wrapper(1), wrapper(1, 5, z=6)) == ((1, 2, 3), (1, 5, 6))


def test_calls_use_the_default_arguments_of_the_replacement() -> None:
    def original(x: int = 1) -> int:
        return x

    def by(call: Any, x: int = 7) -> Any:
        return call(x)

    assert around(original, by)() == 7


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that creates modules that scripts can import. Patches are undone after the test."""
    monkeypatch.setattr(patching, "PATCHES", patches := Patches())

    def make(name: str, **names: Any) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    yield make
    patches.undo()


def test_a_function_is_replaced_in_all_torch_modules_but_in_no_other_module(modules: Any) -> None:
    def function() -> str:
        return "torch's"

    def ours() -> str:
        return "ours"

    named = {"function": function}
    first, second, other = modules("torch.one", **named), modules("torch.two", **named), modules("torchlike", **named)
    alike = modules("torch.three", function=ours)
    patch_everywhere(function, ours)
    assert (first.function, second.function, other.function, alike.function) == (ours, ours, function, ours)


def test_a_module_that_imported_the_name_earlier_is_patched_and_restored(modules: Any) -> None:
    """GIVEN a script module and a PyTorch module that imported a function WHEN the function is patched THEN only the script
    module gets the replacement. After the patch is undone, all modules have the original function."""

    def function() -> str:
        return "torch's"

    def ours() -> str:
        return "ours"

    function.__module__ = "torch.one"
    of_torch, inner = modules("torch.one", function=function), modules("torch.x", f=function)
    script = modules("train", kept=function)
    of_tool = modules("replayer.imports", kept=function)
    patches = Patches()
    patches.set(of_torch, "function", ours)
    patches.extend_to_importers()
    assert (of_torch.function, script.kept, inner.f, of_tool.kept) == (ours, ours, function, function)
    later = modules("later", kept=ours)
    patches.undo()
    assert (of_torch.function, script.kept, inner.f, later.kept) == (function, function, function, function)


def test_an_import_callback_runs_immediately_if_the_module_is_already_imported(
    modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "module_of_a_script.py").write_text("value = 7\n", encoding="utf-8")
    (tmp_path / "another_module_of_a_script.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[int] = []
    when_imported("module_of_a_script", lambda module: seen.append(module.value))
    importer = __import__
    importer("another_module_of_a_script")
    assert seen == []
    importer("module_of_a_script")
    assert seen == [7]
    when_imported("module_of_a_script", lambda module: seen.append(module.value + 1))
    assert seen == [7, 8]


def test_a_wrapper_finds_an_argument_by_position_or_by_name() -> None:
    def call(one: int, two: int = 0) -> None: ...

    two = argument(call, "two")
    assert (two((1, 5), {}), two((1,), {"two": 6}), two((1,), {})) == (5, 6, None)


def test_only_the_outermost_of_nested_calls_enters_the_context_manager() -> None:
    calls, scopes = OutermostCalls(), []

    def scope(args: Any, kwargs: Any) -> Any:
        scopes.append(args)
        return nullcontext() if args[0] > 0 else None

    inner = calls.wrap("name", lambda x: x, scope)
    other = calls.wrap("other", lambda x: inner(x) + 10, scope)
    outer = calls.wrap("name", lambda x: other(x) + 100, scope)
    assert outer(1) == 111 and scopes == [(1,), (1,)]  # the outermost call of each of the two names
    scopes.clear()
    assert outer(0) == 110 and scopes == [(0,), (0,), (0,)]  # no call entered a context manager, so all three calls were asked


class Heard:
    def __init__(self) -> None:
        self.events: list[str] = []

    def enter_phase(self, name: str) -> None:
        self.events.append(f"+{name}")

    def leave_phase(self, name: str, error: BaseException | None = None) -> None:
        self.events.append(f"-{name}")


def test_a_wrapper_of_a_c_function_can_be_pickled() -> None:
    """`pickle` stores a function by the function's module and name. A process that loads the pickle may have the original
    function."""
    patches = Patches()
    patches.set(math, "hypot", around(math.hypot, lambda call, *args: call(*args)))
    try:
        assert pickle.loads(pickle.dumps(math.hypot)) is math.hypot
        stored = pickle.dumps(math.hypot)
    finally:
        patches.undo()
    assert pickle.loads(stored) is math.hypot and not isinstance(math.hypot, FunctionType)


def test_a_phase_that_contains_itself_is_reported_once() -> None:
    heard = Heard()
    phase = PhaseScope("backward", lambda: heard)
    with phase, phase:
        assert heard.events == ["+backward"]
        with phase:
            pass
        assert heard.events == ["+backward"]
    assert heard.events == ["+backward", "-backward"]
    done: list[Any] = []
    step = phase.wrap(lambda x: step(x - 1) if x else "end", lambda listener, args: done.append((listener, args)))
    assert step(2) == "end" and heard.events[2:] == ["+backward", "-backward"] and done == [(heard, (2,))]
    with phase:
        assert step(1) == "end"
    assert heard.events[4:] == ["+backward", "-backward"] and len(done) == 1


def test_a_phase_whose_call_fails_ends_as_not_completed() -> None:
    heard, done = Heard(), []
    failing = PhaseScope("optimizer", lambda: heard).wrap(lambda: 1 / 0, lambda listener, args: done.append(args))
    with pytest.raises(ZeroDivisionError):
        failing()
    assert heard.events == ["+optimizer", "-optimizer"] and done == []
    assert PhaseScope("optimizer", lambda: None).wrap(lambda: 3)() == 3  # no listener is registered
    with PhaseScope("optimizer", lambda: None):
        pass

"""Frames of this tool are removed from tracebacks."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from types import FunctionType

import pytest

from traces.bootstrap._trace_tracebacks import install, shorten

Call = Callable[..., object]


def of_module(name: str) -> Call:
    """Return the function `calls` as a function of another module."""
    return FunctionType(calls.__code__, {"__name__": name, "__builtins__": __builtins__}, "calls")


def calls(call: Call) -> object:
    return call()


def fails() -> None:
    raise ValueError("no")


def shown(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def raised(call: Call) -> ValueError:
    with pytest.raises(ValueError) as found:
        call()
    return found.value


def test_a_traceback_leaves_out_frames_of_trace_replay() -> None:
    ours, theirs = of_module("_trace_tracer.surfaces"), of_module("torch.nn")
    error = raised(lambda: theirs(lambda: ours(fails)))
    before = traceback.extract_tb(error.__traceback__)
    assert shown(error) == ["raised", "<lambda>", "calls", "<lambda>", "calls", "fails"]
    shorten(error, "_trace_")
    assert list(traceback.extract_tb(error.__traceback__)) == [*before[:4], before[5]]


def test_tracebacks_of_causes_and_exception_groups_are_shortened_too() -> None:
    ours = of_module("_trace_tracer.surfaces")
    cause, part = raised(lambda: ours(fails)), raised(lambda: ours(fails))
    error = ExceptionGroup("both", [part])
    error.__cause__, cause.__context__ = cause, error  # a cycle
    shorten(error, "_trace_")
    assert shown(cause) == shown(part) == ["raised", "<lambda>", "fails"]


def test_a_traceback_without_other_frames_is_unchanged() -> None:
    error = raised(fails)
    frames = error.__traceback__
    shorten(error, "tests.")
    assert error.__traceback__ is frames


def warns(level: int) -> None:
    warnings.warn("careful", stacklevel=level)


@pytest.mark.parametrize("warn", [partial(warns, 1), partial(warns, 2), partial(warns, 3), partial(warnings.warn, "careful")])
def test_a_warning_shows_the_place_without_frames_of_this_tool(monkeypatch: pytest.MonkeyPatch, warn: Call) -> None:
    """GIVEN a Python function or a C function that warns WHEN this tool's wrapper calls it THEN the warning shows the same file
    and line as without the wrapper."""
    shown: list[tuple[str, int]] = []
    monkeypatch.setattr(warnings, "_showwarnmsg", lambda message: shown.append((message.filename, message.lineno)))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    install("_trace_")
    ours = of_module("_trace_tracer.surfaces")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for wrapped in (warn, partial(ours, warn)):
            wrapped()
    assert len(shown) == 2
    assert shown[0] == shown[1]

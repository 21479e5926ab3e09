"""Tests that tracebacks do not show frames of this tool."""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

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
    error.__cause__, cause.__context__ = cause, error  # the exceptions refer to each other
    shorten(error, "_trace_")
    assert shown(cause) == shown(part) == ["raised", "<lambda>", "fails"]


def test_a_traceback_without_other_frames_is_unchanged() -> None:
    error = raised(fails)
    frames = error.__traceback__
    shorten(error, "tests.")
    assert error.__traceback__ is frames


def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    extract = traceback.StackSummary._extract_from_extended_frame_gen  # type: ignore[attr-defined]
    monkeypatch.setattr(traceback.StackSummary, "_extract_from_extended_frame_gen", extract)
    install("_trace_")


@pytest.mark.parametrize("through_ours", [True, False])
def test_the_module_traceback_shows_the_script_without_frames_of_this_tool(
    monkeypatch: pytest.MonkeyPatch, through_ours: bool
) -> None:
    """Scripts may print an exception that they catch, and may read their own stack."""
    installed(monkeypatch)
    ours = of_module("_trace_tracer.surfaces")
    call = ours if through_ours else lambda called: called()
    error = raised(lambda: call(fails))
    stacks = [traceback.extract_tb(error.__traceback__), traceback.extract_stack()]
    call(lambda: stacks.append(traceback.extract_stack()))
    assert stacks[0][-1].name == "fails"
    assert stacks[2][-1].name == "<lambda>"
    assert not any("calls" in [frame.name for frame in stack] for stack in stacks)
    here = traceback.StackSummary.extract(traceback.walk_stack(None))[0]
    assert here.name == "test_the_module_traceback_shows_the_script_without_frames_of_this_tool"


def test_an_exception_in_a_thread_is_shown_without_frames_of_this_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_value))
    monkeypatch.setattr(threading, "__excepthook__", threading.excepthook)
    installed(monkeypatch)
    thread = threading.Thread(target=of_module("_trace_tracer.surfaces"), args=(fails,))
    thread.start()
    thread.join()
    assert seen[0] is not None
    assert shown(seen[0])[-1] == "fails"
    assert "calls" not in shown(seen[0])


def warns(level: int) -> None:
    warnings.warn("careful", stacklevel=level)


@pytest.mark.parametrize("warn", [partial(warns, 1), partial(warns, 2), partial(warns, 3), partial(warnings.warn, "careful")])
def test_a_warning_shows_the_place_in_the_script_instead_of_this_tool(monkeypatch: pytest.MonkeyPatch, warn: Call) -> None:
    """GIVEN a function that warns WHEN this tool's wrapper calls the function THEN the warning shows the same file and line as
    without the wrapper."""
    shown: list[tuple[str, int]] = []
    monkeypatch.setattr(warnings, "_showwarnmsg", lambda message: shown.append((message.filename, message.lineno)))
    installed(monkeypatch)
    ours = of_module("_trace_tracer.surfaces")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for wrapped in (warn, partial(ours, warn)):
            wrapped()
    assert len(shown) == 2
    assert shown[0] == shown[1]


@pytest.mark.parametrize("level", [1, 2])
def test_a_warning_of_this_tool_shows_the_line_of_the_script(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    """GIVEN a function of this tool that calls another WHEN the inner one warns THEN the warning shows the script's line,
    whichever of the two functions `stacklevel` selects."""
    shown: list[tuple[str, int]] = []
    monkeypatch.setattr(warnings, "_showwarnmsg", lambda message: shown.append((message.filename, message.lineno)))
    installed(monkeypatch)
    outer = of_module("_trace_tracer.surfaces")
    inner = FunctionType(warns.__code__, {"__name__": "_trace_tracer.recorder", "warnings": warnings}, "warns")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        outer(partial(inner, level))
        line = sys._getframe().f_lineno - 1
    assert shown == [(__file__, line)]


@pytest.mark.parametrize("action", ["default", "module", "once"])
def test_this_tool_does_not_change_how_often_a_warning_is_shown(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """GIVEN two lines of a script that call a warning function twice THEN each line shows the warning as often as without this
    tool's wrapper."""
    shown: list[int] = []
    monkeypatch.setattr(warnings, "_showwarnmsg", lambda message: shown.append(message.lineno))
    installed(monkeypatch)
    script = compile("for _ in range(2):\n    call()\n    call()", "script.py", "exec")
    wrapped = partial(of_module("_trace_tracer.surfaces"), partial(warns, 2))
    counts = []
    for call in (partial(warns, 2), wrapped, wrapped):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            exec(script, {"call": call, "__name__": "script"})
        counts.append(shown[:])
        shown.clear()
    assert counts[0] == ([2, 3] if action == "default" else [2])
    assert counts[1:] == [counts[0]] * 2


def test_warning_filters_for_a_script_module_still_apply_inside_this_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    ours = of_module("_trace_tracer.surfaces")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings("error", module="script")
        with pytest.raises(UserWarning):
            exec("call()", {"call": partial(ours, partial(warns, 2)), "__name__": "script"})

"""Tests that `trace diff --by function` limits the rows of its table, and names traces without Python stacks."""

from __future__ import annotations

import pytest

from traces.analyses.python_functions import FunctionChange, FunctionTime
from traces.model.trace import TraceError
from tui.commands import diff

TIME = FunctionTime("f", calls=1.0, gpu_ns=4_000, own_gpu_ns=3_000, backward_ns=0, host_ns=0)


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[FunctionChange]:
    """Return the list of functions that `trace diff` compares. Tests add functions to this list."""
    found: list[FunctionChange] = []
    monkeypatch.setattr(diff, "load_trace", lambda name: name)
    monkeypatch.setattr(diff, "function_changes", lambda first, second: found)
    return found


@pytest.mark.parametrize(("count", "more"), [(25, ""), (27, "and 2 more; --json has all\n")])
def test_the_table_of_functions_has_at_most_25_rows(
    changes: list[FunctionChange], capsys: pytest.CaptureFixture[str], count: int, more: str
) -> None:
    changes += [FunctionChange(f"train.py({number}): f", TIME, TIME) for number in range(count)]
    assert diff.by_function("a", "b", False) == 0
    said = capsys.readouterr().out
    assert said.count("train.py(") == 25 and said.partition("and ")[2] == more.removeprefix("and ")


def test_an_error_names_traces_without_python_stacks(changes: list[FunctionChange]) -> None:
    with pytest.raises(TraceError, match=r"^neither trace has Python stacks"):
        diff.by_function("a", "b", False)
    changes.append(FunctionChange("train.py(1): f", None, TIME))
    with pytest.raises(TraceError, match=r"^a has no Python stacks"):
        diff.by_function("a", "b", False)
    changes[0] = FunctionChange("train.py(1): f", TIME, None)
    with pytest.raises(TraceError, match=r"^b has no Python stacks"):
        diff.by_function("a", "b", False)

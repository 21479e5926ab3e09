"""Tests that the script's conditions on unknown values get the answer that leads to no error."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def unknown() -> torch.Tensor:
    return torch.randn(8, 8, device="cuda").exp().sum()


@pytest.mark.parametrize(
    "lines",
    [
        "assert a > b",
        "assert a + 1 > a, 'underflow {}'.format(a.item())",
        "assert (a > b) and (b > a), f'both {a}'",
        "assert not (a > b)",
        "assert not (b > a)",
        "assert (a > b).item()",
        "assert bool(a > b)",
        "assert torch.equal(m, n)",
        "assert (m == n).all()",
        "if a > b: raise ValueError('x')",
        "if not (a > b): raise ValueError('x' + str(3))",
        "if a > b or b > a:\n    print('no')\n    raise RuntimeError('no')",
    ],
)
def test_unknown_conditions_get_answers_that_avoid_errors(lines: str) -> None:
    a, b = unknown(), unknown()
    m, n = torch.randn(8, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    exec(lines, {"__name__": "__main__", "torch": torch, "a": a, "b": b, "m": m, "n": n})


def test_unknown_conditions_that_cause_no_error_get_the_default_answer() -> None:
    scope: dict[str, Any] = {"__name__": "__main__", "a": unknown(), "b": unknown(), "m": torch.randn(8, 8, device="cuda")}
    exec("found = 1 if a > b else 2\nwhile a > b: break\nelse: found += 10", scope)
    assert scope["found"] == 12
    code = "try:\n    if (m == 1).all(): raise StopIteration\n    ended = False\nexcept StopIteration: ended = True"
    asked = 0
    while not scope.get("ended"):
        exec(code, scope)
        asked += 1
    assert 100 < asked < 2000  # a script's loop must end, although its condition is unknown


def test_an_assertion_on_a_known_value_fails_correctly() -> None:
    """The script wrote the value itself, so the value is known."""
    with pytest.raises(AssertionError):
        exec("assert a > 3", {"__name__": "__main__", "a": torch.tensor(2.0).cuda()})


def test_an_adaptive_solver_ends_because_assumed_errors_become_small() -> None:
    t, h, tried = torch.zeros((), device="cuda"), torch.ones((), device="cuda"), 0
    while t < 2:
        error = torch.randn(8, 8, device="cuda").abs().max()
        if error <= 0.01:
            t = t + h
        h = h * torch.clamp(0.9 * (0.01 / error) ** 0.2, 0.2, 5.0)
        tried += 1
        assert tried < 1000

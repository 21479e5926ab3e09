"""Tests how benchmarks/public_rank_programs.py compares two runs of a program, and its page of results."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.public_rank_programs import Outcome, Run, numbers, outcomes_of, page


def ran(**norms: list[list[float]]) -> Run:
    return Run(0, "", norms)


def test_parameters_are_compared_rank_by_rank_and_step_by_step() -> None:
    one = ran(a=[[2.0, 4.0], [1.0, 3.0]], b=[[5.0, 0.0]])
    assert numbers(one, ran(a=[[2.0, 4.0], [1.0, 3.0001]], b=[[5.0, 0.0]])) == "equal, 2 steps"
    assert numbers(one, ran(a=[[2.0, 4.0], [1.0, 2.4]], b=[[5.0, 0.0]])) == "differ by 2.0e-01"
    assert numbers(one, ran(a=[[2.0, 4.0]], b=[[5.0, 0.0]])) == "rank a took 2 and 1 steps"
    assert numbers(one, ran(a=one.norms["a"])) == "ranks ['a', 'b'] and ['a'] took steps"
    assert numbers(ran(), ran()) == "no optimizer"


def test_the_page_shows_how_many_programs_had_each_outcome() -> None:
    outcomes = [
        Outcome("examples", "first", 2, 0, "yes", "equal, 5 steps", 1.0),
        Outcome("examples", "second", 2, 1, "raises: torch.x is not emulated by the virtual GPU: use y", "not compared", 1.0),
        Outcome("examples", "third", 4, 0, "no: ValueError: a | b", "not compared", 1.0),
    ]
    text = page(outcomes)
    assert "| run on virtual GPUs | 3 |\n| ended correctly | 1 |\n| raised an error that names the call | 1 |" in text
    assert "| examples | third | 4 | 0 | no: ValueError: a \\| b | not compared |" in text
    assert [replace(one, seconds=0.0) for one in outcomes] == outcomes_of(text)

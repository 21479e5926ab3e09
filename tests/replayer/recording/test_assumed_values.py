"""Tests that values missing from the recording are replaced by the values of a run that makes progress."""

from __future__ import annotations

import math

from replayer.recording.values.assumed_values import PATIENCE, WITHOUT_DATA, AssumedValues


def test_a_loss_falls_with_each_training_step_and_an_accuracy_rises() -> None:
    steps = 0
    assumed = AssumedValues(lambda: steps)
    losses, shares = [], []
    for steps in range(300):  # noqa: B007 -- which the lambda reads
        losses.append(assumed.loss())
        shares.append(assumed.share())
    assert losses[0] == 1.0 and losses == sorted(set(losses), reverse=True) and all(map(math.isfinite, losses))
    assert shares[0] == 0.5 and shares == sorted(set(shares)) and shares[-1] < 1


def test_loops_that_wait_for_a_small_loss_or_a_condition_end() -> None:
    assumed, rounds = AssumedValues(lambda: 0), 0
    while assumed.loss() > 1e-6:
        assumed.note_scalar()
        rounds += 1
    assert PATIENCE < rounds < 2 * PATIENCE
    other, asked = AssumedValues(lambda: 0), 0
    while not (other.decide() and other.decide() is False):  # This loop decides twice in each round.
        asked += 1
    assert asked <= PATIENCE


def test_constant_values_replace_assumed_values() -> None:
    assumed = AssumedValues(lambda: 500, improving=False)
    assert (assumed.loss(), assumed.share(), assumed.decide()) == (1.0, 0.0, False)


def test_a_loop_over_an_assumed_count_ends() -> None:
    assumed = AssumedValues(lambda: 0)
    assert [assumed.count(n) for n in (0, 2, 3, 9)] == [0, 1, 2, 5]
    left, rounds = 1000, 0
    while left:
        left, rounds = assumed.count(left), rounds + 1
    assert rounds < 2 * PATIENCE


def test_an_assumed_loss_shrinks_if_a_loop_reads_it_without_new_data() -> None:
    steps = 0
    assumed = AssumedValues(lambda: steps)
    here = [assumed.loss("here") for _ in range(WITHOUT_DATA + 10)]
    assert here[WITHOUT_DATA - 1] == 1.0 and here[-1] == 0.5**10 and assumed.loss("there") == assumed.loss() == 1.0
    assumed.note_data()
    assert assumed.loss("here") == 1.0
    for _ in range(WITHOUT_DATA):
        assumed.loss("here")
    steps = 1
    assert assumed.loss("here") == assumed.loss() > 0.9


def test_an_assumed_count_of_correct_predictions_never_reaches_the_total() -> None:
    late = AssumedValues(lambda: 10**9)
    assert [late.count(n) for n in (2, 4, 100)] == [1, 3, 99]

"""Claims: order, the three nets, and that no recorded time is given twice."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from replayer.matching import StepClaims
from replayer.parts import Claim
from replayer.score import Score
from replayer.sites import Site
from replayer.values import RecordedValues
from tests.replayer.recordings import Op, recording
from traces.equivalents import canonical_op, canonical_shapes
from traces.model import Origin, Trace, Values


def site(op: str, *shapes: tuple[int, ...]) -> Site:
    return Site(op, shapes, ("float32",) * len(shapes))


def keyed(score: Score, site: Site) -> Site:
    """The site with its keys filled, as a player hands it to a segment."""
    score.keys(site)
    return site


def test_the_kth_call_takes_the_kth_recorded_call() -> None:
    ops = [Op("aten::mm", 10 * i, 5, kernel=(10 * i + 2, i + 1)) for i in range(4)]
    score = Score.of(recording([("forward", 0, 100)], ops))
    segment = StepClaims(score.step(0)).segment("forward")
    call = keyed(score, site("aten::mm", (4, 4)))
    taken = [segment.claim(call) for _ in range(5)]
    assert [claim and claim[1].kernels for claim in taken] == [(0,), (1,), (2,), (3,), None]


def test_a_call_matches_at_the_level_it_sees_and_takes_all_kernels_below() -> None:
    inner = Op("aten::cudnn_convolution", 4, 8, kernel=(20, 30), shapes=((1, 3, 8, 8), (4, 3, 3, 3)))
    outer = Op("aten::conv2d", 0, 20, shapes=((1, 3, 8, 8), (4, 3, 3, 3)), children=[inner])
    score = Score.of(recording([("forward", 0, 100)], [outer]))
    segment = StepClaims(score.step(0)).segment("forward")
    claim = segment.claim(keyed(score, site("aten::convolution", (1, 3, 8, 8), (4, 3, 3, 3), (4,))))
    assert claim is not None
    assert claim[0] is Origin.EQUIVALENT
    assert (claim[1].start_ns, claim[1].kernels) == (0, (0,))
    assert segment.claim(keyed(score, site("aten::cudnn_convolution", (1, 3, 8, 8), (4, 3, 3, 3)))) is None
    assert segment.rest() == []


def test_a_lent_instance_is_still_there_for_the_op_that_asks_exactly_but_is_no_rest() -> None:
    score = Score.of(recording([("forward", 0, 100)], [Op("aten::mm", 0, 5, kernel=(2, 1))]))
    segment = StepClaims(score.step(0)).segment("forward")
    lent = segment.claim(keyed(score, site("aten::mm", (9, 9))))
    assert lent is not None and lent[0] is Origin.SCALED
    assert segment.open_ns == 0
    exact = segment.claim(keyed(score, site("aten::mm", (4, 4))))
    assert exact is not None and exact[0] is Origin.EXACT
    assert segment.rest() == []


def test_another_dtype_is_no_match() -> None:
    score = Score.of(recording([("forward", 0, 100)], [Op("aten::mm", 0, 5, kernel=(2, 1))]))
    segment = StepClaims(score.step(0)).segment("forward")
    assert segment.claim(keyed(score, Site("aten::mm", ((4, 4),), ("float16",)))) is None


names = st.sampled_from(["aten::mm", "aten::relu", "aten::relu_", "aten::add", "aten::nothing"])


@given(st.lists(names, max_size=12), st.lists(names, max_size=20))
def test_claims_and_rest_together_give_every_kernel_at_most_once(recorded: list[str], played: list[str]) -> None:
    ops = [Op(name, 10 * i, 5, kernel=(10 * i + 2, 3)) for i, name in enumerate(recorded)]
    score = Score.of(recording([("forward", 0, 200)], ops))
    segment = StepClaims(score.step(0)).segment("forward")
    given_out: list[int] = []
    for name in played:
        claim = segment.claim(keyed(score, site(name, (4, 4))))
        if claim is not None and claim[0] is not Origin.SCALED:
            given_out.extend(claim[1].kernels)
    given_out.extend(segment.rest())
    assert sorted(given_out) == list(range(len(recorded)))
    assert segment.open_ns == 0


def test_canonical_names_join_releases_backends_and_in_place_forms() -> None:
    assert canonical_op("aten::cudnn_batch_norm") == canonical_op("native_batch_norm")
    assert canonical_op("aten::add_") == canonical_op("aten::add") == "add"
    assert canonical_op("aten::_foreach_add_") != canonical_op("aten::add_")
    assert canonical_op("aten::__and__") == "__and__".rstrip("_")
    assert canonical_shapes(((4, 8), (8,), (2, 4), (8,), ())) == ((2, 4), (4, 8))
    assert canonical_shapes(((8,), ())) == ((8,),)


def test_recorded_values_are_answered_in_order_per_step_and_only_at_their_size() -> None:
    trace = Trace()
    trace.values = Values.of(
        rank=[0, 0, 0, 0], step=[0, 0, 0, 1], read=[0, 1, 1, 2], op=[0] * 4, dtype=[0] * 4, value=[2.5, 1.0, 0.0, 9.0]
    )
    values = RecordedValues.of(trace, 0)
    assert values.next(3, 0, 0) is None
    assert values.next(1, 0, 0) == [2.5]
    assert values.next(2, 0, 0) == [1.0, 0.0]
    assert values.next(1, 0, 0) is None
    assert values.next(1, 1, 1) == [9.0]
    assert values.next(1, 2, 1) == [9.0]  # the same recorded step once more


@given(st.lists(names, max_size=12), st.lists(st.lists(names, max_size=14), min_size=2, max_size=6))
def test_remembering_the_last_time_changes_no_answer(recorded: list[str], steps: list[list[str]]) -> None:
    ops = [Op(name, 10 * i, 5, kernel=(10 * i + 2, 3 + i)) for i, name in enumerate(recorded)]
    remembering = Score.of(recording([("forward", 0, 200)], ops))
    sites = {name: site(name, (4, 4)) for name in set().union(*steps)}
    # WHEN the same recorded step is played again and again, mostly in the same way
    for played in [steps[0], steps[0], *steps, steps[0]]:
        fresh = Score.of(recording([("forward", 0, 200)], ops))
        answers = []
        for score in (remembering, fresh):
            segment = StepClaims(score.step(0)).segment("forward")
            given_out = []
            for name in played:
                claim = segment.claim(keyed(remembering, sites[name]))
                given_out.append((claim and (claim[0], claim[1].kernels), segment.open_ns))
            answers.append((given_out, segment.rest(), segment.open_ns))
        # THEN every answer is that of a score which has never been played
        assert answers[0] == answers[1]


def test_a_look_in_the_midst_of_a_remembered_phase_takes_what_was_launched_by_then() -> None:
    ops = [Op("aten::mm", 10 * i, 5, kernel=(10 * i + 2, 3)) for i in range(6)]
    score = Score.of(recording([("forward", 0, 200)], ops))
    call = keyed(score, site("aten::mm", (4, 4)))
    for _ in range(2):
        segment = StepClaims(score.step(0)).segment("forward")
        segment.claim(call)
        assert segment.rest() == [1, 2, 3, 4, 5]
    segment = StepClaims(score.step(0)).segment("forward")
    segment.claim(call)
    assert segment.rest_until(35_000) == [1, 2, 3]
    assert segment.rest() == [4, 5]


def test_each_device_has_claims_of_its_own() -> None:
    """GIVEN the same op recorded on two devices WHEN both call it THEN each takes its own, and what is left is told apart."""
    trace = recording([("forward", 0, 200)], [Op("aten::relu", at, 5, kernel=(at + 5, 10 + at)) for at in (0, 50, 100)])
    trace.devices = [trace.devices[0], replace(trace.devices[0], index=1)]
    trace.device.device[:] = [0, 1, 1]
    score = Score.of(trace)
    relu = keyed(score, site("aten::relu", (4, 4)))
    segment = StepClaims(score.step(0)).segment("forward")
    lane = segment.lane(1)
    assert lane is segment.lane(1) is not segment and segment.lane(0) is segment
    kernels = score.step(0).kernels

    def durations(claim: Claim | None) -> list[int]:
        assert claim is not None
        return [kernels[k].duration_ns // 1000 for k in claim[1].kernels]

    assert durations(lane.claim(relu)) == [60] and durations(segment.claim(relu)) == [10]
    assert segment.claim(relu) is None
    assert [kernels[k].duration_ns // 1000 for k in lane.rest()] == [110] and segment.rest() == []


def test_a_process_whose_first_device_hardly_works_is_on_the_next_one() -> None:
    trace = recording([("forward", 0, 2_000)], [Op("aten::relu", at, 5, kernel=(at + 5, 10)) for at in range(0, 1_000, 50)])
    trace.devices = [trace.devices[0], replace(trace.devices[0], index=1)]
    trace.device.device[:] = 1
    trace.device.device[0] = 0
    segment = Score.of(trace).step(0).segments["forward", 0]
    assert len(segment.kernels) == 19 and len(segment.lane(1).kernels) == 1


def test_a_segment_without_kernels_of_that_device_claims_as_one() -> None:
    trace = recording([("forward", 0, 50)], [Op("aten::relu", 0, 5, kernel=(5, 10))])
    segment = StepClaims(Score.of(trace).step(0)).segment("forward")
    assert segment.lane(1) is segment

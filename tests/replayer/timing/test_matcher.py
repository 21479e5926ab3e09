"""Tests how calls of a script are matched with recorded calls. No recorded time is used twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.op_signature import OpSignature
from replayer.recording.recorded_run import RecordedRun
from replayer.recording.recorded_step import LEADING, RecordedSegment, RecordedStep
from replayer.timing.matcher import Histories, Match, StepMatcher
from tests.replayer.recordings import Op, make_recording
from traces.model.trace import NONE, UNKNOWN_LIST, HostKind, Origin, StepKind
from traces.model.workload import Sameness
from traces.names.equivalent_ops import canonical_op


def signature(op: str, *shapes: tuple[int, ...]) -> OpSignature:
    return OpSignature(op, shapes, ("float32",) * len(shapes))


def test_calls_of_an_op_match_its_recorded_calls_in_order() -> None:
    ops = [Op("aten::mm", 10 * i, 5, kernel=(10 * i + 2, i + 1)) for i in range(4)]
    recording = RecordedRun(make_recording([("forward", 0, 100)], ops))
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    call = signature("aten::mm", (4, 4))
    taken = [segment.match(call) for _ in range(5)]
    assert [match and match[1].kernels for match in taken] == [(0,), (1,), (2,), (3,), None]


def test_a_call_matches_an_outer_op_and_gets_the_kernels_of_its_children() -> None:
    inner = Op("aten::cudnn_convolution", 4, 8, kernel=(20, 30), shapes=((1, 3, 8, 8), (4, 3, 3, 3)))
    outer = Op("aten::conv2d", 0, 20, shapes=((1, 3, 8, 8), (4, 3, 3, 3)), children=[inner])
    recording = RecordedRun(make_recording([("forward", 0, 100)], [outer]))
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    match = segment.match(signature("aten::convolution", (1, 3, 8, 8), (4, 3, 3, 3), (4,)))
    assert match is not None
    assert match[0] is Origin.EQUIVALENT
    assert (match[1].start_ns, match[1].kernels) == (0, (0,))
    assert segment.match(signature("aten::cudnn_convolution", (1, 3, 8, 8), (4, 3, 3, 3))) is None
    assert segment.unmatched() == []


def test_a_call_that_an_inexact_match_used_can_still_match_exactly() -> None:
    recording = RecordedRun(make_recording([("forward", 0, 100)], [Op("aten::mm", 0, 5, kernel=(2, 1))]))
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    lent = segment.match(signature("aten::mm", (9, 9)))
    assert lent is not None and lent[0] is Origin.SCALED
    assert segment.unmatched_ns == 0
    exact = segment.match(signature("aten::mm", (4, 4)))
    assert exact is not None and exact[0] is Origin.EXACT
    assert segment.unmatched() == []


@pytest.mark.parametrize("op", ["aten::_foreach_add_", "aten::cat", "aten::stack", "aten::_cudnn_rnn"])
def test_a_call_with_more_tensors_gets_a_scaled_time(op: str) -> None:
    recorded = Op(op, 0, 5, kernel=(2, 1), shapes=((4, 4),) * 28)
    recording = RecordedRun(make_recording([("optimizer", 0, 100)], [recorded]))
    for tensors, origin in ((28, Origin.EXACT), (36, Origin.SCALED)):
        segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("optimizer")
        match = segment.match(signature(op, *[(4, 4)] * tensors))
        assert match is not None and match[0] is origin


def test_a_recorded_call_with_a_different_shape_is_not_taken_from_far_ahead() -> None:
    # GIVEN an `add` near the beginning of the phase, and another `add` after forty products
    ops = [Op("aten::add", 0, 5, kernel=(2, 1))]
    ops += [Op("aten::mm", 10 * i, 5, kernel=(10 * i + 2, 1)) for i in range(1, 41)]
    ops += [Op("aten::add", 500, 5, kernel=(502, 1))]
    recording = RecordedRun(make_recording([("forward", 0, 600)], ops))
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    other, product = signature("aten::add", (9, 9)), signature("aten::mm", (4, 4))
    near = segment.match(other)
    assert near is not None and near[0] is Origin.SCALED
    # THEN a call with another shape takes the second `add` only when the script has come near this `add`
    assert segment.match(other) is None
    for _ in range(40):
        segment.match(product)
    assert segment.match(other) is not None


def test_a_recorded_phase_without_gpu_work_is_skipped() -> None:
    """GIVEN a recorded step with two forward phases, the first without GPU work WHEN the script makes the recorded calls in
    one forward phase THEN the calls match the recorded phase with GPU work."""
    ops = [Op("aten::mm", 70, 5, kernel=(72, 9)), Op("aten::relu", 80, 5, kernel=(82, 4))]
    phases = [("forward", 0, 50), ("loader", 50, 60), ("forward", 60, 100), ("loss", 100, 110)]
    recording = RecordedRun(make_recording(phases, ops))
    histories: Histories = {}
    for _ in range(2):
        matcher = StepMatcher(recording.choice.training(0), recording.keys, histories)
        segment = matcher.segment("forward")
        taken = [segment.match(signature(op, (4, 4))) for op in ("aten::mm", "aten::relu")]
        assert [match and (match[0], match[1].kernels, match[1].of_other_phase) for match in taken] == [
            (Origin.EXACT, (0,), False),
            (Origin.EXACT, (1,), False),
        ]
        assert segment.unmatched() == []
        assert segment.sameness is Sameness.SAME_PROGRAM
        assert [(recorded.name, visited) for recorded, visited in matcher.unvisited()] == [("loader", False), ("loss", False)]


def test_an_op_outside_all_recorded_phases_does_not_skip_an_empty_phase() -> None:
    phases = [("forward", 0, 50), ("loader", 50, 60), ("forward", 60, 100)]
    recording = RecordedRun(make_recording(phases, [Op("aten::mm", 70, 5, kernel=(72, 9))]))
    matcher = StepMatcher(recording.choice.training(0), recording.keys, {})
    assert matcher.segment("forward").match(signature("aten::softmax", (4, 4))) is None
    match = matcher.segment("forward").match(signature("aten::mm", (4, 4)))
    assert match is not None and match[0] is Origin.EXACT and not match[1].of_other_phase


def test_a_call_with_equal_shapes_in_another_phase_is_preferred_to_other_shapes() -> None:
    """GIVEN two forward phases WHEN the first phase calls the product of the second phase THEN the call takes the time of that
    product. The second phase also gets this time."""
    ops = [
        Op("aten::mm", 0, 5, kernel=(2, 1), shapes=((1, 1), (1, 1))),
        Op("aten::mm", 70, 5, kernel=(72, 9), shapes=((8, 8), (8, 8))),
    ]
    phases = [("forward", 0, 50), ("zero_grad", 50, 60), ("forward", 60, 100)]
    recording = RecordedRun(make_recording(phases, ops))
    matcher = StepMatcher(recording.choice.training(0), recording.keys, {})
    product = signature("aten::mm", (8, 8), (8, 8))
    for of_other_phase in (True, False):
        match = matcher.segment("forward").match(product)
        assert match is not None and match[0] is Origin.EXACT
        assert (match[1].kernels, match[1].of_other_phase) == ((1,), of_other_phase)


def test_a_call_with_a_different_dtype_does_not_match() -> None:
    recording = RecordedRun(make_recording([("forward", 0, 100)], [Op("aten::mm", 0, 5, kernel=(2, 1))]))
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    assert segment.match(OpSignature("aten::mm", ((4, 4),), ("float16",))) is None


names = st.sampled_from(["aten::mm", "aten::relu", "aten::relu_", "aten::add", "aten::nothing"])


@given(st.lists(names, max_size=12), st.lists(names, max_size=20))
def test_every_recorded_kernel_is_replayed_at_most_once(recorded: list[str], played: list[str]) -> None:
    ops = [Op(name, 10 * i, 5, kernel=(10 * i + 2, 3)) for i, name in enumerate(recorded)]
    recording = RecordedRun(make_recording([("forward", 0, 200)], ops))
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    given_out: list[int] = []
    for name in played:
        match = segment.match(signature(name, (4, 4)))
        if match is not None and match[0] is not Origin.SCALED:
            given_out.extend(match[1].kernels)
    given_out.extend(segment.unmatched())
    assert sorted(given_out) == list(range(len(recorded)))
    assert segment.unmatched_ns == 0


def test_canonical_op_names_are_equal_across_releases_and_backends() -> None:
    assert canonical_op("aten::cudnn_batch_norm") == canonical_op("native_batch_norm")
    assert canonical_op("aten::add_") == canonical_op("aten::add") == "add"
    assert canonical_op("aten::_foreach_add_") != canonical_op("aten::add_")
    assert canonical_op("aten::__and__") == "__and__".rstrip("_")


@given(st.lists(names, max_size=12), st.lists(st.lists(names, max_size=14), min_size=2, max_size=6))
def test_cached_matches_of_earlier_steps_do_not_change_later_matches(recorded: list[str], steps: list[list[str]]) -> None:
    ops = [Op(name, 10 * i, 5, kernel=(10 * i + 2, 3 + i)) for i, name in enumerate(recorded)]
    remembering = RecordedRun(make_recording([("forward", 0, 200)], ops))
    signatures = {name: signature(name, (4, 4)) for name in set().union(*steps)}
    remembered: Histories = {}
    # WHEN the recorded step is replayed several times, mostly with the same calls
    for played in [steps[0], steps[0], *steps, steps[0]]:
        fresh = RecordedRun(make_recording([("forward", 0, 200)], ops))
        answers = []
        for recording, histories in ((remembering, remembered), (fresh, {})):
            segment = StepMatcher(recording.choice.training(0), recording.keys, histories).segment("forward")
            given_out = []
            for name in played:
                match = segment.match(signatures[name])
                given_out.append((match and (match[0], match[1].kernels), segment.unmatched_ns))
            answers.append((given_out, segment.unmatched(), segment.unmatched_ns))
        # THEN the matches are those of a recording that is replayed for the first time
        assert answers[0] == answers[1]


def test_a_wait_in_a_known_phase_first_completes_the_kernels_recorded_before_it() -> None:
    ops = [Op("aten::mm", 10 * i, 5, kernel=(10 * i + 2, 3)) for i in range(6)]
    recording = RecordedRun(make_recording([("forward", 0, 200)], ops))
    call = signature("aten::mm", (4, 4))
    histories: Histories = {}
    for _ in range(2):
        segment = StepMatcher(recording.choice.training(0), recording.keys, histories).segment("forward")
        segment.match(call)
        assert segment.unmatched() == [1, 2, 3, 4, 5]
    segment = StepMatcher(recording.choice.training(0), recording.keys, histories).segment("forward")
    segment.match(call)
    assert segment.unmatched_until(35_000) == [1, 2, 3]
    assert segment.unmatched() == [4, 5]


def test_calls_on_each_device_are_matched_separately() -> None:
    """GIVEN the same op recorded on two devices WHEN both devices run the op THEN each call gets the kernels of its device.
    Unmatched kernels are listed for each device."""
    calls = [Op("aten::relu", at, 5, kernel=(at + 5, 10 + at // 5)) for at in (0, 50, 100)]
    trace = make_recording([("forward", 0, 200)], calls)
    trace.devices = [trace.devices[0], replace(trace.devices[0], index=1)]
    trace.device.device[:] = [0, 1, 1]
    recording = RecordedRun(trace)
    relu = signature("aten::relu", (4, 4))
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    lane = segment.lane(1)
    assert lane is segment.lane(1) is not segment and segment.lane(0) is segment
    kernels = recording.choice.training(0).kernels

    def durations(match: Match | None) -> list[int]:
        assert match is not None
        return [kernels[k].duration_ns // 1000 for k in match[1].kernels]

    assert durations(lane.match(relu)) == [20] and durations(segment.match(relu)) == [10]
    assert segment.match(relu) is None
    assert [kernels[k].duration_ns // 1000 for k in lane.unmatched()] == [30] and segment.unmatched() == []


def test_the_main_device_of_a_process_is_the_one_with_the_most_kernels() -> None:
    ops = [Op("aten::relu", at, 5, kernel=(at + 5, 10)) for at in range(0, 1_000, 50)]
    trace = make_recording([("forward", 0, 2_000)], ops)
    trace.devices = [trace.devices[0], replace(trace.devices[0], index=1)]
    trace.device.device[:] = 1
    trace.device.device[0] = 0
    segment = RecordedRun(trace).choice.training(0).segments["forward", 0]
    assert len(segment.kernels) == 19 and len(segment.lane(1).kernels) == 1


def test_a_phase_without_kernels_on_a_device_is_matched_separately_for_it() -> None:
    trace = make_recording([("forward", 0, 50)], [Op("aten::relu", 0, 5, kernel=(5, 10))])
    segment = StepMatcher((recording := RecordedRun(trace)).choice.training(0), recording.keys, {}).segment("forward")
    assert segment.lane(1) is segment


@pytest.mark.parametrize("same", [True, False])
def test_a_kernel_without_an_op_can_belong_to_any_unmatched_call(same: bool) -> None:
    """GIVEN a recorded small add, and a kernel whose op the profiler lost WHEN the recorded program calls a large add THEN
    this call takes the kernel without an op."""
    adds = [Op("aten::add", 10 + 30 * i, 10, kernel=(15 + 30 * i, 20 + i), shapes=((4, 4),)) for i in range(2)]
    trace = make_recording([("backward", 0, 100)], adds)
    launch = int(trace.device.launch[1])
    trace.host.kind[int(trace.host.parent[launch])] = HostKind.ANNOTATION
    recording = RecordedRun(trace)
    matcher = StepMatcher(recording.choice.training(0), recording.keys, {})
    matcher.of_same_program = same
    segment = matcher.segment("backward")
    large, small = signature("aten::add", (64, 64)), signature("aten::add", (4, 4))
    match = segment.match(large)
    assert match is not None and (match[0], match[1].kernels) == ((Origin.EQUIVALENT, (1,)) if same else (Origin.SCALED, (0,)))
    match = segment.match(small)
    assert match is not None and (match[0], match[1].kernels) == (Origin.EXACT, (0,))
    assert segment.unmatched() == ([] if same else [1])


@pytest.mark.parametrize(("matched", "left"), [(8, True), (7, None)])
def test_the_remaining_recorded_work_is_known_if_four_of_five_calls_match(matched: int, left: bool | None) -> None:
    """GIVEN twenty recorded sums WHEN eight of ten calls of a script are sums THEN the rest of the recorded step is as long as
    the first ten calls. If only seven of ten calls are sums, the length of the rest is unknown."""
    recording = RecordedRun(
        make_recording([("forward", 0, 900)], [Op("aten::sum", 10 * i, 5, kernel=(10 * i + 2, 1)) for i in range(20)])
    )
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    for i in range(10):
        segment.match(signature("aten::sum" if i < matched else "aten::erfinv", (4, 4)))
    assert segment.has_as_much_left(0) is left


@pytest.mark.parametrize(("follows", "left"), [("aten::sum", True), ("aten::cat", False)])
def test_ops_after_the_last_model_call_do_not_form_a_new_call(follows: str, left: bool) -> None:
    """GIVEN a recorded step with two sums and two more ops WHEN a new step has called two sums THEN another model call is
    expected only if the two more ops are also sums."""
    names = ["aten::sum", "aten::sum", follows, follows]
    ops = [Op(name, 10 * i, 5, kernel=(10 * i + 2, 1)) for i, name in enumerate(names)]
    recording = RecordedRun(make_recording([("forward", 0, 900)], ops))
    called = [signature(name, (4, 4)) for name in names]
    histories: Histories = {}
    for end in (4, 2):
        segment = StepMatcher(recording.choice.training(0), recording.keys, histories).segment("forward")
        for one in called[:end]:
            segment.match(one)
        if end == 4:
            segment.unmatched()
    assert segment.history is not None and segment.has_as_much_left(0) is left


def test_a_call_with_an_unrecorded_list_of_tensors_is_matched_by_name() -> None:
    """Kineto records no shapes for a list of more than 30 tensors. Such calls are matched by name only, in their recorded
    order."""
    ops = [Op("aten::_foreach_add_", 10 * i, 5, kernel=(10 * i + 2, 3)) for i in range(2)]
    trace = make_recording([("forward", 0, 100)], ops)
    rows = trace.host.name == trace.strings.find("aten::_foreach_add_")
    trace.host.shapes[rows], trace.host.dtypes[rows] = trace.strings.add(UNKNOWN_LIST), NONE
    recording = RecordedRun(trace)
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    for kernel in range(2):
        match = segment.match(signature("aten::_foreach_add_", *[(4, 4)] * 31))
        assert match is not None and (match[0], match[1].kernels) == (Origin.EXACT, (kernel,))


def two_products() -> StepMatcher:
    """Return a recorded step with two products in the forward pass, and with the same sum in both passes."""
    sums = [Op("aten::sum", at, 5, kernel=(at + 2, 1)) for at in (30, 130)]
    ops = [Op("aten::mm", 0, 5, kernel=(2, 1)), Op("aten::mm", 10, 5, kernel=(12, 1)), *sums]
    recording = RecordedRun(make_recording([("forward", 0, 100), ("backward", 100, 200)], ops))
    return StepMatcher(recording.choice.training(0), recording.keys, {})


MM, SUM, OTHER = signature("aten::mm", (4, 4)), signature("aten::sum", (4, 4)), signature("aten::erfinv", (4, 4))


def test_a_predicted_phase_counts_as_unmatched_until_half_of_its_time_is_matched() -> None:
    segment = two_products().segment("backward")
    assert segment.recorded is not None
    assert not segment.mostly_unmatched
    segment.recorded.predicted = True
    assert segment.mostly_unmatched
    segment.match(SUM)
    assert not segment.mostly_unmatched
    half = two_products().segment("forward")
    assert half.recorded is not None
    half.recorded.predicted, half.recorded.work_ns, half.unmatched_ns = True, 4_000, 2_000
    assert not half.mostly_unmatched


def test_a_recorded_call_is_available_until_the_script_has_made_it() -> None:
    step = two_products()
    for _ in range(2):  # In the second round, the matcher remembers the calls.
        segment = StepMatcher(step.step, step.keys, step.histories).segment("forward")
        found = []
        for call in (MM, OTHER, MM, MM, SUM):
            found.append(segment.has_call(call))
            segment.match(call)
        assert found == [True, False, True, False, True]
        segment.unmatched()
        assert not segment.has_call(SUM)


def test_a_repeated_call_is_found_by_its_position_in_the_phase() -> None:
    step = two_products()
    first = step.segment("forward")
    for call in (MM, MM, SUM):
        first.match(call)
    first.unmatched()
    again = StepMatcher(step.step, step.keys, step.histories).segment("forward")
    assert again.history is not None and again.has_call(MM) and again.history is not None
    # The call comes earlier than before, so the matcher has to search for the call.
    assert again.has_call(SUM) and again.history is None


def test_a_recorded_phase_fits_if_it_contains_all_calls_of_the_script() -> None:
    step = two_products()
    forward, backward = step.segment("forward"), step.segment("backward")
    assert forward.recorded is not None and backward.recorded is not None
    backward.match(SUM)
    backward.match(OTHER)  # This call was not recorded, so it does not count.
    assert backward.fits(forward.recorded) and backward.fits(backward.recorded)
    for call in (MM, MM, SUM):
        forward.match(call)
    assert forward.fits(forward.recorded) and not forward.fits(backward.recorded)
    assert forward.reached_before_latest_ns == 15_000


def test_before_the_first_call_the_recorded_time_is_0() -> None:
    segment = two_products().segment("forward")
    segment.match(MM)
    assert segment.reached_before_latest_ns == 0


def test_an_outer_op_gets_only_kernels_that_no_inner_op_has_used() -> None:
    inner = [Op("aten::mm", 2, 5, kernel=(9, 1)), Op("aten::sum", 10, 5, kernel=(12, 1))]
    recording = RecordedRun(make_recording([("forward", 0, 100)], [Op("aten::linear", 0, 20, children=inner)]))
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    found = [segment.match(signature(f"aten::{name}", (4, 4))) for name in ("sum", "linear", "mm")]
    assert [match and match[1].kernels for match in found] == [(1,), (0,), None]
    assert segment.unmatched_ns == 0


@pytest.mark.parametrize(
    ("adds", "product", "sameness"),
    [
        ([(4, 4)] * 9, (4, 4), Sameness.SAME_PROGRAM),
        ([(4, 4)] * 8 + [(9, 9)], (4, 4), Sameness.SAME_PROGRAM),
        ([(4, 4)] * 9, (9, 9), Sameness.OTHER_SHAPES),  # The product takes most of the time and has another shape.
        ([(9, 9)] * 9, (4, 4), Sameness.OTHER_SHAPES),  # Most calls have another shape.
        ([(4, 4)] * 9, None, Sameness.OTHER_PROGRAM),  # The script does not call the product, which takes most of the time.
        ([None] * 9, (4, 4), Sameness.OTHER_PROGRAM),  # Most calls of the script were not recorded.
    ],
)
def test_a_program_counts_as_the_same_if_calls_and_times_match(
    adds: list[tuple[int, int] | None], product: tuple[int, int] | None, sameness: Sameness
) -> None:
    """The recorded phase has nine additions of 1 us and a product of 1,000 us."""
    ops = [Op("aten::add", 10 * i, 5, kernel=(10 * i + 2, 1)) for i in range(9)]
    ops.append(Op("aten::mm", 90, 5, kernel=(92, 1_000)))
    recording = RecordedRun(make_recording([("forward", 0, 100)], ops))
    segment = StepMatcher(recording.choice.training(0), recording.keys, {}).segment("forward")
    for shape in adds:
        segment.match(OTHER if shape is None else signature("aten::add", shape))
    if product is not None:
        segment.match(signature("aten::mm", product))
    segment.unmatched()
    assert segment.sameness is sameness


def test_the_following_phases_are_those_that_the_script_has_not_entered() -> None:
    """GIVEN a step with two forward passes and an empty loss WHEN the script enters a phase THEN the phase leaves the list. A
    phase without recorded time is never in the list. Work before the first phase is in the list until a phase begins."""
    forward, empty = RecordedSegment("forward", host_ns=9), RecordedSegment("loss")
    phases = {("other", LEADING): forward, ("forward", 0): forward, ("loss", 0): empty, ("forward", 1): forward}
    matcher = StepMatcher(RecordedStep(0, phases, [], StepKind.STEADY), {}, {})
    assert matcher.following() == ["other", "forward", "forward"]
    matcher.segment("forward")
    assert matcher.following() == ["forward"]
    matcher.segment("forward")
    assert matcher.following() == []

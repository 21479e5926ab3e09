"""Tests the model of a trace: its tables, ranks and device names, and how a replay is recognized."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import pytest

from tests.traces.handmade import replay_of, training
from traces.library.cell_traces import blank_trace, trace_with_step_times
from traces.library.cells import Gpu
from traces.model.json_facts import OMITTED_IF_EMPTY, OMITTED_IF_NONE, as_json, extended
from traces.model.run import KINETO, RECORDER, LibrarySteps, ReplayNotes, Run
from traces.model.trace import (
    NONE,
    Collectives,
    Column,
    DeviceKind,
    DeviceSpans,
    HostSpans,
    Phases,
    Sizes,
    Steps,
    Trace,
    parse_shapes,
)


def test_the_repr_of_a_trace_shows_the_rows_of_its_tables() -> None:
    assert repr(Trace()) == "Trace(kernel grain, 0 devices, no rows)"
    assert repr(training()).startswith("Trace(kernel grain, 1 devices, 4 steps, 24 phases, ")


def test_devices_are_named_with_their_rank_if_there_are_several_ranks() -> None:
    trace = training()
    trace.devices = [replace(trace.devices[0], index=3)]
    assert (trace.ranks, trace.device_label(0)) == ([0], "cuda:3")
    trace.devices.append(replace(trace.devices[0], rank=2))
    assert (trace.ranks, trace.device_label(1)) == ([0, 2], "rank 2 cuda:3")


def test_the_timeline_of_notebooks_has_one_lane_for_phases_and_each_stream() -> None:
    trace = training()
    trace.device.stream[1::5] = 20
    page = trace._repr_html_()
    assert [label in page for label in ("phases", "cuda:0 stream 7", "cuda:0 stream 20", "rank 0")] == [True, True, True, False]
    assert page.count("volta_sgemm_nn") == 4 and page.count("softmax") == 4
    trace.devices.append(replace(trace.devices[0], rank=1))
    page = trace._repr_html_()
    assert "rank 0 phases" in page and "rank 0 cuda:0 stream 7" in page and "rank 1 cuda:0 stream" not in page


def test_a_trace_with_replay_notes_or_replayed_steps_is_a_replay() -> None:
    cut = replay_of(training())
    assert cut.is_replay and not training().is_replay
    cut.runs = {}
    assert cut.is_replay  # the steps still refer to recorded steps
    cut.steps.recorded_step[:] = -1
    assert not cut.is_replay


CELLS = LibrarySteps(1, {}, ())


@pytest.mark.parametrize(
    ("notes", "recorded", "is_replay_of"),
    [
        (None, Run(RECORDER), False),
        (ReplayNotes("a", RECORDER), Run(RECORDER), True),
        (ReplayNotes("h100"), Run(RECORDER), False),  # an estimate has no recording
        (ReplayNotes("a", KINETO), Run(RECORDER), False),
        (ReplayNotes(cells=(CELLS,)), Run(RECORDER), False),
        (ReplayNotes(cells=(CELLS,)), Run(), True),  # step times from the library have no recorder
        (ReplayNotes("a", RECORDER), Run(RECORDER, replay=ReplayNotes("b")), True),  # a replay of a replay
        (ReplayNotes("a", RECORDER), Run(RECORDER, replay=ReplayNotes("a")), False),  # two replays of the same recording
        (ReplayNotes("a", KINETO), Run(RECORDER, replay=ReplayNotes("b")), False),
        (ReplayNotes("a", KINETO), Run(RECORDER, replay=ReplayNotes("a")), False),
    ],
)
def test_the_notes_of_a_replay_decide_to_which_recording_it_belongs(
    notes: ReplayNotes | None, recorded: Run, is_replay_of: bool
) -> None:
    assert Trace(runs={0: Run(replay=notes)}).is_replay_of(Trace(runs={0: recorded})) is is_replay_of


def test_a_trace_counts_as_a_replay_only_of_its_own_recording() -> None:
    """GIVEN two recordings whose steps differ by 1 ns WHEN the first one is replayed THEN the replay belongs to the first
    recording only. A recording with shifted times is still the same recording."""
    first, moved, second, none = (Trace(runs={0: Run(RECORDER)}) for _ in range(4))
    first.steps = Steps.of(start_ns=[100, 200], duration_ns=[90, 95])
    moved.steps = Steps.of(start_ns=[1100, 1200], duration_ns=[90, 95])
    second.steps = Steps.of(start_ns=[100, 200], duration_ns=[90, 96])
    replay = Trace(runs={0: Run(replay=ReplayNotes("a", RECORDER, fingerprint=first.fingerprint))})
    assert [replay.is_replay_of(one) for one in (first, moved, second, none)] == [True, True, False, False]
    assert none.fingerprint == ""


def test_a_replay_of_measured_step_times_counts_as_a_replay_of_the_measurements() -> None:
    """GIVEN a replay that began without step times WHEN the library provides step times THEN the replay counts as a replay of
    these times."""
    gpu = Gpu("a100", "NVIDIA A100-SXM4-40GB", 40 << 30)
    blank = blank_trace(gpu)
    replay = Trace(runs={0: Run(replay=ReplayNotes(fingerprint=blank.fingerprint, cells=(CELLS,)))})
    assert replay.is_replay_of(trace_with_step_times(blank, [{"forward": 100}], ["a100/resnet50"], None))


def test_a_unix_clock_counts_from_1970() -> None:
    assert Run("hand", "unix").is_epochal and not Run("hand", "monotonic").is_epochal


class Colour(Enum):
    RED = "red"


@dataclass
class Facts:
    name: str
    colour: Colour = Colour.RED
    notes: list[str] = field(default_factory=list, metadata=OMITTED_IF_EMPTY)
    count: int | None = field(default=None, metadata=OMITTED_IF_NONE)
    always: int | None = None


@dataclass
class Longer(Facts):
    more: tuple[int, ...] = ()


def test_the_json_of_a_result_omits_empty_optional_fields() -> None:
    assert as_json(Facts("a")) == {"name": "a", "colour": "red", "always": None}
    full = Facts("a", notes=["b"], count=0)
    assert as_json(full) == {"name": "a", "colour": "red", "notes": ["b"], "count": 0, "always": None}
    assert as_json({1: (Facts("a"),)}) == {"1": [{"name": "a", "colour": "red", "always": None}]}


def test_a_dataclass_can_be_copied_into_one_with_more_fields() -> None:
    assert extended(Longer, Facts("a", count=2), more=(1,)) == Longer("a", count=2, more=(1,))
    assert extended(Longer, Facts("a"), name="b", more=(2,)) == Longer("b", more=(2,))


def test_the_string_table_finds_texts_by_index_and_by_content() -> None:
    strings = Trace().strings
    first, second = strings.add("gemm"), strings.add("relu")
    assert (strings.find("gemm"), strings.find("relu"), strings.find("add")) == (first, second, NONE)
    assert (strings[first], strings[second], strings[NONE]) == ("gemm", "relu", "")
    for times in (1, 5):  # once for a short column, and once for a long column
        column = np.array([first, second, NONE] * times)
        assert strings.matching(column, lambda text: text == "gemm").tolist() == [True, False, False] * times
        assert strings.matching(column, lambda text: True).tolist() == [True, True, False] * times


def test_an_event_is_never_enclosed_by_itself_or_by_a_later_event() -> None:
    host = HostSpans.of(parent=[0, 0, 1, 4, NONE])
    assert host.earlier_parent.tolist() == [NONE, 0, 1, NONE, NONE]
    assert [list(host.outward(row)) for row in range(5)] == [[0], [1, 0], [2, 1, 0], [3], [4]]


def test_a_lazy_column_is_computed_once_and_only_if_it_is_read() -> None:
    read: list[str] = []

    def decode(name: str) -> dict[str, Column]:
        read.append(name)
        return {name: np.array([7, 8], Sizes.DTYPES[name])}

    one, other = (Sizes.deferred(2, decode) for _ in range(2))
    both = Sizes.concatenated([one, other])

    assert len(both) == 4 and read == []
    assert both.size.tolist() == both.size.tolist() == [7, 8, 7, 8] and read == ["size", "size"]
    assert both.take([0, 3]).step.tolist() == [7, 8]
    assert both.take([3, 0]).step.tolist() == [8, 7]
    with pytest.raises(AttributeError, match="Sizes has no attribute 'start_ns'"):
        _ = both.start_ns  # type: ignore[attr-defined]


def test_rows_selected_lazily_equal_rows_selected_immediately() -> None:
    steps = Steps.of(number=[1, 2, 3], start_ns=[10, 20, 30], duration_ns=[5, 6, 7])
    chosen = np.array([True, False, True])
    later, now = steps.taken_later(chosen), steps.take(chosen)
    later.duration_ns = np.array([8, 9])
    assert len(later) == 2 and later.start_ns.tolist() == now.start_ns.tolist() == [10, 30]
    assert later.end_ns.tolist() == [18, 39] and later.number.tolist() == now.number.tolist()


def test_a_lazily_loaded_table_is_decoded_one_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def table(number: int) -> Sizes:
        def decode(name: str) -> dict[str, Column]:
            read.append(number)
            return {name: np.array([number, 10 + number, 20 + number], Sizes.DTYPES[name])}

        return Sizes.deferred(3, decode)

    both = Sizes.concatenated([table(1), table(2)])
    monkeypatch.setattr("traces.model.trace._PIECE_ROWS", 4)
    pieces = list(both.pieces())

    assert [len(piece) for piece in pieces] == [4, 2] and read == []
    assert pieces[1].size.tolist() == [12, 22] and read == [2]
    assert pieces[0].size.tolist() == [1, 11, 21, 2]
    assert both.take(slice(5, 9)).size.tolist() == [22] and both.take(slice(6, None)).size.tolist() == []
    assert both.take(slice(None, None, 2)).size.tolist() == [1, 21, 12]
    assert both.take(np.array([True, False] * 3)).size.tolist() == [1, 21, 12]


def test_a_collective_without_a_recorded_call_starts_at_its_call_time() -> None:
    assert Collectives.of(start_ns=[5, 9], called_ns=[NONE, 7]).call_ns.tolist() == [5, 7]


def test_parsing_shapes_skips_lists_of_tensors_without_shapes() -> None:
    assert parse_shapes("2,3;?;4") == ((2, 3), (4,)) and parse_shapes("?") == parse_shapes("") == ()


def test_kernels_copies_and_memsets_are_work_of_the_gpu() -> None:
    """GIVEN a device span of each kind THEN synchronizations and user ranges are not work."""
    rows = len(DeviceKind)
    spans = DeviceSpans.of(
        device=[0] * rows, stream=[0] * rows, kind=[*DeviceKind], name=[0] * rows, start_ns=[0] * rows, duration_ns=[1] * rows
    )
    kinds = [kind for kind, is_work in zip(DeviceKind, spans.is_work.tolist(), strict=True) if is_work]
    assert kinds == [DeviceKind.KERNEL, DeviceKind.MEMCPY, DeviceKind.MEMSET]


def test_a_phase_is_timed_on_the_gpu_if_both_of_its_ends_are_known() -> None:
    ends = [(NONE, NONE), (5, NONE), (NONE, 9), (5, 9)]
    starts_ns, ends_ns = zip(*ends, strict=True)
    rows = {"step": [0] * 4, "name": [0] * 4, "start_ns": [0] * 4, "duration_ns": [1] * 4}
    assert Phases.of(**rows, device_start_ns=starts_ns, device_end_ns=ends_ns).is_timed.tolist() == [False, False, False, True]

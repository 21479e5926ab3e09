"""Tests that the importer survives damaged files, and how it builds the op tree.

For any change of a recording's bytes, the importer returns a trace or raises an error with one clear line.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.kineto.test_eras import T0, call, imported, kernel, op, training_step
from traces.comparison.thresholds import ROUNDING_NS
from traces.figures.measure import op_of
from traces.kineto import read_kineto, read_kineto_bytes
from traces.kineto.reading.text import parse
from traces.kineto.spans.nesting import nesting_order, parents
from traces.model.trace import NONE, Trace, TraceImportError

EVENTS = [op("ProfilerStep#5", 0, 100, cat="user_annotation"), *training_step(0)]
TEXT = orjson.dumps(
    {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "GPU"}],
        "traceEvents": EVENTS,
        "displayTimeUnit": "ms",
    },
    option=orjson.OPT_INDENT_2,
)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "rank", "name", "x"]), inner),
    max_leaves=5,
)


def consistent(trace: Trace) -> bool:
    rows = len(trace.host)
    return bool((trace.host.parent < rows).all() and (trace.device.launch < rows).all() and (trace.host.duration_ns >= 0).all())


def attempt(data: bytes) -> Trace | None:
    try:
        trace = read_kineto_bytes(data)
    except TraceImportError as error:
        assert "\n" not in str(error)
        return None
    assert consistent(trace)
    return trace


def test_truncation_at_every_byte_keeps_the_events_before_the_cut() -> None:
    whole = read_kineto_bytes(TEXT)
    assert whole.problems == {}
    for length in range(0, len(TEXT), 7):
        trace = attempt(TEXT[:length])
        ended = TEXT[:length].count(b'"args"') - 1  # the event with the last args may be cut
        if trace is not None:
            assert len(trace.host) + len(trace.device) >= ended
            if length < len(TEXT.rstrip(b" }\n")):
                assert trace.problems.keys() & {"truncated-json", "unreadable-header"}
        else:
            assert ended <= 0


@given(st.lists(st.tuples(st.integers(0, len(TEXT) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_bytes_never_cause_a_traceback(changes: list[tuple[int, int]]) -> None:
    data = bytearray(TEXT)
    for position, value in changes:
        data[position] = value
    attempt(bytes(data))


@given(st.data())
def test_removed_or_duplicated_text_never_causes_a_traceback(data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(TEXT)))
    end = data.draw(st.integers(begin, min(len(TEXT), begin + 300)))
    attempt(TEXT[:begin] + TEXT[end:])
    attempt(TEXT[:end] + TEXT[begin:])


@given(json_values)
def test_an_import_survives_any_value_in_any_field_of_an_event(value: Any) -> None:
    for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args"):
        for event in (op("aten::add", 1, 2, Input_Dims=[[1]]), kernel(3, 4)):
            attempt(json.dumps({"traceEvents": [{**event, key: value}, call(3, 2)]}).encode())
    for key in ("Input Dims", "Input type", "External id", "correlation", "device", "stream", "Sequence number"):
        events = [op("aten::add", 1, 2), kernel(3, 4)]
        for event in events:
            event["args"][key] = value
        attempt(json.dumps({"traceEvents": events}).encode())
    for key in ("deviceProperties", "distributedInfo", "baseTimeNanoseconds", "record_shapes"):
        attempt(json.dumps({"traceEvents": [op("aten::add", 1, 2), kernel(3, 4)], key: value}).encode())


def test_a_malformed_event_does_not_affect_other_events() -> None:
    lines = [orjson.dumps(event) for event in EVENTS]
    lines[4] = lines[4].replace(b'"ts":', b'"ts" ')
    for text in (b'{"traceEvents":[' + b",".join(lines) + b"]}", b"[" + b",\n".join(lines) + b"]"):
        problems: Counter[str] = Counter()
        document = parse(text, problems, "x")
        assert document.events == EVENTS[:4] + EVENTS[5:]
        assert problems == {"unreadable-event": 1}


def test_after_a_repair_the_fields_behind_the_event_list_are_still_read() -> None:
    text = b'{"a": 1, "traceEvents": [{"ph": "X", "v": nan},], "distributedInfo": {"rank": 2}}'
    problems: Counter[str] = Counter()
    document = parse(text, problems, "x")
    assert document.header == {"a": 1, "distributedInfo": {"rank": 2}}
    assert document.events == [{"ph": "X", "v": None}]
    assert problems == {"non-finite-number": 1, "trailing-comma": 1}


def test_reading_json_repairs_only_invalid_escapes() -> None:
    text = rb'[{"ph": "X", "v": "\\c \c \n \ud83d\ude00 \ud83d \u00e9 \q"}]'
    problems: Counter[str] = Counter()
    document = parse(text, problems, "x")
    assert document.events == [{"ph": "X", "v": "\\c \\c \n \U0001f600 \ufffd \u00e9 \\q"}]
    assert problems == {"invalid-escape": 2, "half-character": 1}


def test_importing_a_missing_file_or_empty_folder_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceImportError, match="cannot be read"):
        read_kineto(tmp_path / "missing.json")
    with pytest.raises(TraceImportError, match=r"no \.json"):
        read_kineto(tmp_path)


def test_gzip_files_with_several_members_or_damage_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(TEXT[:500]) + gzip.compress(TEXT[500:]))
    assert read_kineto(path).problems == {}
    packed = bytearray(gzip.compress(TEXT, compresslevel=0))
    packed[-5] ^= 1  # this byte is in the checksum, so the text is complete
    path.write_bytes(packed)
    trace = read_kineto(path)
    assert trace.problems.keys() <= {"damaged-gzip", "truncated-json"}
    assert "damaged-gzip" in trace.problems


def folder_of(folder: Path, names: tuple[str, ...], **header: Any) -> Path:
    for index, name in enumerate(names):
        (folder / name).write_bytes(orjson.dumps({**header, "traceEvents": [op(f"op{index}", index, 1)]}))
    return folder


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("rank0.json", "rank10.json", "rank2.json"), [0, 2, 10]),
        (("worker1.170.pt.trace.json", "worker0.169.pt.trace.json"), [0, 1]),
        (("kineto_0.json", "kineto_1.json", "kineto_2.json"), [0, 1, 2]),
    ],
)
def test_ranks_are_determined_by_file_names(tmp_path: Path, names: tuple[str, ...], ranks: list[int]) -> None:
    trace = read_kineto(folder_of(tmp_path, names))
    assert trace.ranks == ranks
    files = [trace.provenance["ranks"][str(rank)]["file"] for rank in trace.ranks]
    assert files == sorted(names, key=lambda name: (len(name), name))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("a.json", "b.json", "c.json"), "a.json does not contain its rank"),
        (("resnet18.json", "resnet50.json"), "resnet18.json does not contain its rank"),  # a number in a name may mean anything
        (("rank0.json", "bert.json"), "bert.json does not contain its rank"),
        (("rank4.one.json", "rank4.two.json", "rank5.json"), "rank4.one.json and rank4.two.json are both from rank 4"),
    ],
)
def test_files_with_ambiguous_ranks_are_named_in_the_error(tmp_path: Path, names: tuple[str, ...], says: str) -> None:
    with pytest.raises(TraceImportError, match=says):
        read_kineto(folder_of(tmp_path, names))


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ({"world_size": 2}, {"world_size": 8}, "a.json has 2 ranks and b.json has 8 ranks, so the runs differ"),
        ({"backend": "nccl"}, {"backend": "gloo"}, "a.json has the backend nccl and b.json has the backend gloo, so"),
        ({"nccl_version": "2.21.5"}, {"nccl_version": "2.27.3"}, "a.json has NCCL 2.21.5 and b.json has NCCL 2.27.3, so"),
    ],
)
def test_files_whose_headers_show_different_runs_are_rejected(
    tmp_path: Path, one: dict[str, object], other: dict[str, object], says: str
) -> None:
    folder_of(tmp_path, ("a.json",), distributedInfo={"rank": 0, **one})
    folder_of(tmp_path, ("b.json",), distributedInfo={"rank": 1, **other})
    with pytest.raises(TraceImportError, match=re.escape(says)):
        read_kineto(tmp_path)


def test_unrelated_files_in_a_folder_are_skipped_and_named(tmp_path: Path) -> None:
    folder_of(tmp_path, ("rank0.json", "rank1.json"))
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "empty.json").write_text("")
    foreign = {"ph": "X", "cat": "ebpf", "name": "x", "ts": 1, "dur": 1}
    # A file of another program cannot be imported, even if it has the header of Kineto.
    (tmp_path / "ebpf.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [foreign]}))
    (tmp_path / "notes.txt").write_text("not looked at")
    trace = read_kineto(tmp_path)
    assert trace.ranks == [0, 1] and trace.problems == {"skipped-file": 3}
    skipped = trace.provenance["skipped_files"]
    assert list(skipped) == ["config.json", "ebpf.json", "empty.json"] and "ebpf" in skipped["ebpf.json"]
    # Each of these files is rejected if it is imported alone, and so is a folder with only such files.
    for name in skipped:
        with pytest.raises(TraceImportError, match=name):
            read_kineto(tmp_path / name)
    for name in ("rank0.json", "rank1.json"):
        (tmp_path / name).unlink()
    with pytest.raises(TraceImportError):
        read_kineto(tmp_path)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_an_archive_is_read_like_a_folder_of_its_files(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder_of(folder, ("rank0.json", "rank1.json"))
    (folder / "rank2.json.gz").write_bytes(gzip.compress((folder / "rank1.json").read_bytes()))
    (folder / "._rank0.json").write_bytes(b"a file beside the file")
    path = tmp_path / f"run.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, f"run/{file.name}")
    else:
        with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as archive:
            archive.add(folder, "run")
    trace = read_kineto(path)
    assert trace.ranks == [0, 1, 2] and trace.problems == {}
    assert trace.provenance["ranks"]["1"]["file"] == "run/rank1.json"
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b'"op1"')] if kind == "tar" else data[:-300])
    with pytest.raises(TraceImportError, match="damaged archive"):
        read_kineto(path)


def test_several_ranks_in_one_file_are_split() -> None:
    # GIVEN a file in which a tool merged several ranks. The events name their ranks, and the process ids were changed.
    events = []
    for rank in (0, 3):
        for event in (op("aten::add", 10 + rank, 5), call(3, 12 + rank), kernel(3, 20 + rank, device=rank)):
            moved = {**event, "pid": event["pid"] + rank * 100_000_000}
            events.append(moved | {"args": {**event["args"], "rank": rank}})
        events[-1]["args"]["device"] += rank * 100_000_000
        named = {"ph": "M", "name": "thread_name", "pid": 7 + rank * 100_000_000, "tid": 7, "args": {"name": "python"}}
        events.append(named)
    events.append({"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": T0, "dur": 1})
    trace = read_kineto_bytes(orjson.dumps({"schemaVersion": 1, "traceEvents": events}), "merged.json")
    assert trace.ranks == [0, 3] and trace.problems == {}
    assert [(device.rank, device.index) for device in trace.devices] == [(0, 0), (3, 3)]
    assert [(thread.rank, thread.name) for thread in trace.threads] == [(0, "python"), (3, "python")]
    assert trace.host.parent[trace.device.launch].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("labels", "ranks"),
    [(("[TP00]", "[TP03]"), [0, 3]), (("[TP00-DP01]", "[TP00-DP04]"), [0, 1]), (("Rank 2:", "Rank 5:"), [2, 5])],
)
def test_rank_numbers_before_process_numbers_split_a_file_into_ranks(labels: tuple[str, str], ranks: list[int]) -> None:
    events = []
    for label in labels:
        for event in (op("aten::add", 10, 5), call(3, 12), kernel(3, 20)):
            events.append({**event, "pid": f"{label} {event['pid']}"})
    trace = read_kineto_bytes(orjson.dumps({"schemaVersion": 1, "traceEvents": events}), "merged.json")
    assert trace.ranks == ranks and trace.problems == {}
    assert trace.host.parent[trace.device.launch].tolist() == [0, 2]


def test_unknown_categories_are_counted_by_name() -> None:
    categories = ("cpu_op", "mtia_x_events", "mtia_x_events", "\x1b[31m")
    events = [op("a", at, 1, cat=category) for at, category in enumerate(categories)]
    trace = read_kineto_bytes(orjson.dumps({"traceEvents": events}))
    assert trace.problems == {"unknown-category mtia_x_events": 2, "unknown-category (unreadable)": 1}
    assert len(trace.host) == 4


# --- the op tree

spans = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 8), st.integers(0, 2), st.integers(0, 3)),
    max_size=14,
)


@given(spans, st.sampled_from([1, ROUNDING_NS // 2, ROUNDING_NS, 5 * ROUNDING_NS]))
def test_the_parents_of_events_equal_those_of_a_full_search(drawn: list[tuple[int, ...]], unit_ns: int) -> None:
    thread, start, duration, outer, entry = (np.array([d[i] for d in drawn], "i8") for i in range(5))
    start, duration = start * unit_ns, duration * unit_ns
    order = nesting_order(thread, start, duration, outer, entry)
    expected_order = sorted(
        range(len(drawn)), key=lambda row: (thread[row], start[row], -duration[row], outer[row], entry[row], row)
    )
    assert order.tolist() == expected_order

    thread, start, end = thread[order], start[order], (start + duration)[order]
    found, _, _ = parents(thread, start, end, np.zeros(len(thread), bool), np.zeros(len(thread), bool))

    for row in range(len(drawn)):
        enclosing = [
            above
            for above in range(row)
            if thread[above] == thread[row]
            and (end[above] >= end[row] or (end[above] > start[row] and end[row] - end[above] <= ROUNDING_NS))
        ]
        assert found[row] == (max(enclosing) if enclosing else NONE)


def test_a_python_frame_without_an_end_ends_with_the_enclosing_frame() -> None:
    """GIVEN a Python frame that seems to last until the end of the recording WHEN the frame around it ends at 50 us THEN the
    inner frame also ends at 50 us. The outermost frame keeps its end. A frame may outlast a range that is not a frame."""
    start, end = np.array([0, 10, 20, 60]) * 1000, np.array([100, 50, 100, 70]) * 1000
    thread = np.zeros(4, "i4")
    parent, overlaps, ends = parents(thread, start, end, np.array([True, True, True, False]), np.zeros(4, bool))
    assert (parent.tolist(), overlaps) == ([NONE, 0, 1, 0], 1)
    assert ends.tolist() == [100_000, 50_000, 50_000, 70_000]
    parent, _, ends = parents(thread, start, end, np.array([True, False, True, False]), np.zeros(4, bool))
    assert (parent.tolist(), ends.tolist()) == ([NONE, 0, 0, 2], end.tolist())


@pytest.mark.parametrize(("starts_us", "owner"), [(2, "aten::addmm"), (14, "aten::linear"), (19, None)])
def test_a_call_that_ends_shortly_after_its_op_belongs_to_the_op(starts_us: float, owner: str | None) -> None:
    """GIVEN a launch that ends 2 us after its op, because the clock of CUDA differs from the host's THEN the op made the
    launch. WHEN less than half of the launch is inside an op THEN the op did not make the launch."""
    linear, addmm = op("aten::linear", 0, 20), op("aten::addmm", 1, 15)
    trace = imported([linear, addmm, call(1, starts_us, 22 - starts_us), kernel(1, 40)])
    (row,) = op_of(trace).tolist()
    assert (None if row == NONE else trace.strings[int(trace.host.name[row])]) == owner


@pytest.mark.parametrize("ends_us", [22, 30])
def test_the_next_op_is_not_nested_in_a_call_that_ends_too_late(ends_us: int) -> None:
    """GIVEN a linear until 20 us, whose launch seems to last until 23 us WHEN the next op begins at 21 us THEN no op encloses
    the next op."""
    trace = imported([op("aten::linear", 0, 20), call(1, 14, 9), kernel(1, 40), op("aten::relu", 21, ends_us - 21)])
    relu = trace.host.name == trace.strings.find("aten::relu")
    assert trace.host.parent[relu].tolist() == [NONE] and not trace.problems


def test_an_import_ignores_overlaps_caused_by_rounding() -> None:
    one = np.zeros(3, "i4")
    no_frames = np.zeros(3, bool)
    _, overlaps, _ = parents(one, np.array([0, 5000, 9000]), np.array([10_000, 20_000, 10_500]), no_frames, no_frames)
    assert overlaps == 1
    for start_ns, end_ns, count in ((5000, 11_000, 0), (9000, 20_000, 0), (8999, 20_000, 1)):
        _, overlaps, _ = parents(one[:2], np.array([0, start_ns]), np.array([10_000, end_ns]), no_frames[:2], no_frames[:2])
        assert overlaps == count

"""Tests the import of every real recording.

Counts and busy times agree with the index of recordings, and links between rows agree with the ids in the recording.
"""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tests.conftest import SHARED_TRACES
from traces.kineto import read_kineto
from traces.model.trace import NONE, DeviceKind, HostKind, Trace

WORK = (DeviceKind.KERNEL, DeviceKind.MEMCPY, DeviceKind.MEMSET)
GPU_CATEGORIES = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}


@dataclass(frozen=True)
class Row:
    """Contains a line of the index of real recordings."""

    name: str
    kernels: int
    copies: int
    memory: int
    steps: int
    busy_ms: float


def index_rows() -> list[Row]:
    if not (SHARED_TRACES / "INDEX.md").exists():
        return []
    rows = []
    for line in (SHARED_TRACES / "INDEX.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if len(cells) == 11 and cells[0].startswith("`"):
            name = cells[0].strip("`").replace("rank0..7", "rank0")
            kernels, copies, memory, steps = map(int, cells[5:9])
            rows.append(Row(name, kernels, copies, memory, steps, float(cells[9])))
    return rows


@cache
def imported(name: str) -> Trace:
    return read_kineto(SHARED_TRACES / f"{name}.json.gz")


def events_of(name: str) -> list[dict[str, Any]]:
    content = orjson.loads(gzip.decompress((SHARED_TRACES / f"{name}.json.gz").read_bytes()))
    return list(content if isinstance(content, list) else content["traceEvents"])


def busy_ns(trace: Trace) -> int:
    """Return the busy time of all devices together. Work that overlaps on one device counts once."""
    total = 0
    for row in range(len(trace.devices)):
        chosen = (trace.device.device == row) & np.isin(trace.device.kind, WORK)
        spans = sorted(zip(trace.device.start_ns[chosen].tolist(), trace.device.end_ns[chosen].tolist(), strict=True))
        covered = -(1 << 62)
        for start, end in spans:
            total += max(0, end - max(start, covered))
            covered = max(covered, end)
    return total


@pytest.fixture(autouse=True)
def _needs_recordings(shared_traces: Path) -> None:
    """Requires the real recordings for all tests of this file."""


def test_every_recording_is_in_the_index(shared_traces: Path) -> None:
    names = {file.name.removesuffix(".json.gz") for file in shared_traces.glob("*.json.gz")}
    assert {row.name for row in index_rows()} == names | {"a100_megatron_tp8/rank0"}


@pytest.mark.parametrize("row", index_rows(), ids=lambda row: row.name)
def test_imported_counts_and_busy_time_agree_with_the_index_of_recordings(row: Row) -> None:
    trace = imported(row.name)
    kinds = Counter(trace.device.kind.tolist())

    assert kinds[DeviceKind.KERNEL] == row.kernels
    assert kinds[DeviceKind.MEMCPY] + kinds[DeviceKind.MEMSET] == row.copies
    assert len(trace.memory) == row.memory
    if trace.provenance["steps_from"] == "profiler":
        assert len(trace.steps) == row.steps
    elif trace.provenance["steps_from"] == "batches":
        assert len(trace.steps) > row.steps > 0
    else:
        assert row.steps == 0
    # The index was computed in float64, which rounds nanoseconds since 1970 to a quarter of a microsecond.
    tolerance_ns = 1000 * (row.kernels + row.copies) if trace.provenance["era"] == "E5" else 500
    assert busy_ns(trace) == pytest.approx(row.busy_ms * 1e6, abs=tolerance_ns)


@pytest.mark.parametrize("row", index_rows(), ids=lambda row: row.name)
def test_the_tables_of_each_real_recording_are_consistent(row: Row) -> None:
    trace = imported(row.name)
    host, device, steps, phases = trace.host, trace.device, trace.steps, trace.phases

    nested = host.parent != NONE
    above = host.parent[nested]
    assert (above < np.flatnonzero(nested)).all()
    assert (host.thread[above] == host.thread[nested]).all()
    assert (host.start_ns[above] <= host.start_ns[nested]).all()
    assert (host.end_ns[above] + 1000 >= host.end_ns[nested]).all()
    assert (np.lexsort((-host.duration_ns, host.start_ns, host.thread)) == np.arange(len(host))).all()
    assert (np.lexsort((device.start_ns, device.stream, device.device)) == np.arange(len(device))).all()
    launched = np.isin(device.kind, WORK) & (device.launch != NONE)
    assert (host.kind[device.launch[launched]] == HostKind.RUNTIME).all()
    assert (host.start_ns[device.launch[launched]] <= device.start_ns[launched]).all()
    assert int((np.isin(device.kind, WORK) & ~launched).sum()) == trace.problems.get("backlog-at-start", 0)
    for step in range(len(steps)):
        of_step = phases.step == step
        starts, ends = phases.start_ns[of_step], phases.end_ns[of_step]
        assert starts[0] == steps.start_ns[step]
        assert ends[-1] == steps.end_ns[step]
        assert (starts[1:] == ends[:-1]).all()
        assert (phases.device_end_ns[of_step] >= phases.device_start_ns[of_step]).all()


@pytest.mark.parametrize(
    "name",
    ["v100_resnet50_workers0", "gpu2020_resnet50_workers4_array", "mi300x_resnet18_no_pool", "b200_eager_inference"],
)
def test_each_imported_kernel_belongs_to_the_op_with_the_same_external_id(name: str) -> None:
    """The importer finds the op of a kernel by nesting, not by ids. If a recording has reliable ids, the ids are an independent
    check."""
    trace = imported(name)
    events = events_of(name)
    ids = ("External id", "external id")
    op_of = {
        event["args"]["External id"]: event["name"]
        for event in events
        if event.get("cat") in ("cpu_op", "Operator") and event["args"].get("External id", 0) > 0
    }
    result = Counter(
        (event["name"], op_of[external])
        for event in events
        if event.get("cat") in GPU_CATEGORIES
        for external in [next((event["args"][key] for key in ids if key in event["args"]), 0)]
        if external in op_of
    )

    found: Counter[tuple[str, str]] = Counter()
    host, device = trace.host, trace.device
    for row in np.flatnonzero(np.isin(device.kind, WORK) & (device.launch != NONE)).tolist():
        op = int(host.parent[device.launch[row]])
        while op != NONE and host.kind[op] != HostKind.OP:
            op = int(host.parent[op])
        if op != NONE:
            found[trace.strings[device.name[row]], trace.strings[host.name[op]]] += 1

    assert sum(result.values()) > 900
    assert not result - found


MAIN_CASE = {  # for each step, the ms of the whole step, of its data loading and of its optimizer on the host
    "v100_resnet50_workers0": (
        [176.1, 174.0, 176.9, 181.3, 176.5, 164.3],
        [68.7, 68.8, 73.4, 71.4, 70.8, 62.6],
        [20.4, 18.9, 17.8, 20.5, 17.9, 17.5],
    ),
    "v100_resnet50_workers4": (
        [181.6, 123.9, 126.8, 126.3, 163.5, 116.1],
        [4.3, 0.1, 0.1, 1.3, 1.4, 1.4],
        [21.7, 22.3, 21.4, 24.0, 24.6, 21.7],
    ),
}


@pytest.mark.parametrize("name", MAIN_CASE)
def test_the_main_recording_has_the_phases_of_a_plain_loop(name: str) -> None:
    trace = imported(name)
    whole, loader, optimizer = MAIN_CASE[name]
    names = [trace.strings[i] for i in trace.phases.name]
    # The figures of the index contain only the ranges. Phases also contain the gaps between ranges.
    assert (trace.steps.duration_ns / 1e6).tolist() == pytest.approx(whole, abs=0.051)
    assert names == ["loader", "h2d", "forward", "loss", "zero_grad", "backward", "optimizer"] * 6
    milliseconds = (trace.phases.duration_ns / 1e6).reshape(6, 7)
    assert milliseconds[:, 0].tolist() == pytest.approx(loader, abs=0.25)
    assert milliseconds[:, 6].tolist() == pytest.approx(optimizer, abs=0.5)


def test_ddp_training_has_the_same_phases_on_nvidia_and_amd() -> None:
    for name in ("v100_absolute_ns", "a100_nccl_args_rank0of2", "mi300x_resnet_act_checkpoint_rank0of8"):
        trace = imported(name)
        names = [trace.strings[i] for i in trace.phases.name]
        assert names == ["other", "zero_grad", "forward", "loss", "backward", "optimizer"] * len(trace.steps)
        assert [thread.role for thread in trace.threads[:2]] == ["main", "backward"]


def test_without_step_marks_steps_end_at_the_optimizer() -> None:
    trace = imported("rtx2080ti_linear")
    assert trace.provenance["steps_from"] == "optimizer"
    ends = trace.steps.end_ns
    assert len(trace.steps) == 40  # there is one step per Optimizer.step range, and one per loss
    assert trace.host.name.tolist().count(trace.strings.find("aten::cross_entropy_loss")) == 40
    assert (trace.steps.start_ns[1:] == ends[:-1]).all()


def test_memory_totals_change_by_the_bytes_of_each_event() -> None:
    trace = imported("v100_ddp_memory_rank1of2")
    on_device = trace.memory.take(trace.memory.device != NONE)
    assert (np.diff(on_device.allocated_bytes) == on_device.bytes[1:]).all()
    assert (on_device.address > 0).all()


def test_timestamps_since_1970_keep_every_digit() -> None:
    name = "v100_absolute_ns"
    trace = imported(name)
    text = gzip.decompress((SHARED_TRACES / f"{name}.json.gz").read_bytes())
    first = text.index(b'"ts": ') + len(b'"ts": ')
    digits = text[first : text.index(b",", first)]
    assert int(digits.replace(b".", b"")) in trace.host.start_ns.tolist()
    assert len(np.unique(trace.host.start_ns % 250)) > 200  # float64 would round times to a quarter of a microsecond


def test_memory_events_of_an_amd_gpu_are_on_the_device_of_its_kernels() -> None:
    trace = imported("mi300x_qwen05b_inference")
    # PyTorch calls this GPU cuda:0. The profiler calls it 2, because it also counts processors.
    assert [(device.rank, device.index) for device in trace.devices] == [(0, 0)]
    assert set(trace.memory.device.tolist()) == {0, NONE}
    assert trace.devices[0].total_memory_bytes > 190 * 10**9


def test_a_recording_without_gpu_lists_gpu_work_as_missing() -> None:
    trace = imported("cpu_only_rank34of300")
    assert "GPU work" in trace.lacks
    assert trace.ranks == [34]
    assert (trace.phases.device == NONE).all()


def test_a_folder_of_ranks_becomes_one_trace(shared_traces: Path) -> None:
    trace = read_kineto(shared_traces / "a100_megatron_tp8")
    alone = imported("a100_megatron_tp8/rank0")

    assert trace.ranks == list(range(8))
    assert [(device.rank, device.index) for device in trace.devices] == [(rank, rank) for rank in range(8)]
    assert sorted(trace.steps.rank.tolist()) == list(range(8))
    rank_of_thread = np.array([thread.rank for thread in trace.threads])
    rank_of_device = np.array([device.rank for device in trace.devices])
    launched = trace.device.launch != NONE
    launch_rank = rank_of_thread[trace.host.thread[trace.device.launch[launched]]]
    assert (launch_rank == rank_of_device[trace.device.device[launched]]).all()
    assert int((rank_of_thread[trace.host.thread] == 0).sum()) == len(alone.host)
    assert (np.diff(trace.steps.start_ns) >= 0).all()
    assert trace.provenance["ranks"]["3"]["file"] == "rank3.json.gz"
    # The ranks of one host have one clock, so the last all-reduce ends on all ranks within 100 us.
    reduces = np.array([index for index, text in enumerate(trace.strings.texts) if "AllReduce" in text])
    is_reduce = np.isin(trace.device.name, reduces)
    ends = [trace.device.end_ns[is_reduce & (trace.device.device == row)].max() for row in range(8)]
    assert max(ends) - min(ends) < 100_000


BROKEN = {  # for each file: the counted problems, the number of host spans, and the number of device spans
    "array_only.json": ({}, 94, 18),
    "array_unclosed.json": ({"truncated-json": 1}, 94, 18),
    "bandwidth_NA.json": ({"non-finite-number": 1}, 94, 18),
    "bandwidth_NaN.json": ({"non-finite-number": 1}, 94, 18),
    "bandwidth_inf.json": ({"non-finite-number": 1}, 94, 18),
    "bandwidth_minus_nan.json": ({"non-finite-number": 1}, 94, 18),
    "control_char.json": ({"control-character": 1}, 94, 18),
    "dur_overflow.json": ({"duration-overflow": 1}, 94, 18),
    "gzip_truncated.json.gz": ({"truncated-gzip": 1, "truncated-json": 1}, 70, 0),
    "invalid_utf8.json": ({"invalid-utf8": 2}, 94, 18),
    "metadata_only.json": ({}, 0, 0),
    "negative_dur.json": ({"negative-duration": 14}, 94, 18),
    "newline_in_name.json": ({"control-character": 1}, 94, 18),
    "no_args.json": ({"launches-in-order": 16}, 94, 18),
    # A begin event and its end event are one span. Neither event has a category.
    "other_phases.json": ({"event-without-category": 1, "other-phase-event": 2, "unreadable-event": 1}, 95, 18),
    "string_timestamps.json": ({}, 94, 18),
    "trailing_comma.json": ({"trailing-comma": 1}, 94, 18),
    "truncated_mid_event.json": ({"lost-kernel": 14, "truncated-json": 1}, 94, 1),
    "truncated_no_close.json": ({"truncated-json": 1}, 94, 18),
    "ts_zero.json": ({"lost-kernel": 1, "zero-timestamp": 1}, 94, 17),
    "unescaped_quote.json": ({"unescaped-quote": 1}, 94, 18),
    "utf8_bom.json": ({"byte-order-mark": 1}, 94, 18),
    "win_backslash.json": ({"invalid-escape": 2}, 94, 18),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_read_in_part_and_their_problems_are_counted(shared_traces: Path, name: str) -> None:
    trace = read_kineto(shared_traces / "broken" / name)
    problems, host, device = BROKEN[name]
    assert (trace.problems, len(trace.host), len(trace.device)) == (problems, host, device)


def test_every_broken_file_in_shared_has_an_expected_result(shared_traces: Path) -> None:
    files = {file.name for file in (shared_traces / "broken").iterdir()}
    assert files == BROKEN.keys() | {"empty.json"}


def test_broken_names_are_repaired_correctly(shared_traces: Path) -> None:
    for name, text in [
        ("win_backslash", "torch\\cuda\\__init__.py(219): _lazy_init"),
        ("unescaped_quote", '{"device": "cpu"}(12): run'),
        ("newline_in_name", "foo\nbar"),
    ]:
        assert read_kineto(shared_traces / "broken" / f"{name}.json").strings.find(text) != NONE

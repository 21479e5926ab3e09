"""Tests the published values in library cells, the file format of cells, and how cells are found."""

from __future__ import annotations

import csv
import gzip
import os
import re
import zlib
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.published.gpemu import GPUS, build, first_extrapolated
from traces.format.trace_file import save
from traces.library import catalogue
from traces.library.cell_traces import blank_trace, trace_of, trace_with_step_times
from traces.library.cells import MAGIC, VERSION, CellSource, Gpu, LibraryCell, NotMeasured, fault, read_cells, write_cells
from traces.library.listing import all_entries
from traces.library.matching import match_with
from traces.model.run import Run
from traces.model.trace import TraceFormatError, TraceLibraryError, TraceWriteError
from traces.model.workload import InputTensor, WorkloadSignature

PUBLISHED = Path(__file__).parents[4] / "shared" / "published" / "gpemu_times.csv.gz"
GPU = Gpu("g9", "Test GPU G9", 8 << 30)
NETWORK = WorkloadSignature(
    parameters=1000,
    trainable_parameters=1000,
    parameter_bytes=4000,
    modules={"Conv2d": 3, "ReLU": 3, "Net": 1},
    inputs=(InputTensor((1, 3, 8, 8), "float32"),),
    batch_bytes=776,
    optimizer="SGD",
    autocast="off",
)


def a_cell(model: str = "net", batches: tuple[int, ...] = (1, 2, 4), **changes: object) -> LibraryCell:
    of = np.array(batches, np.int64)
    told = CellSource(commit="abc"), {"done": "by hand"}
    times = {"forward": of * 1000, "rest": of * 2000 + 7}
    plain = LibraryCell(GPU, model, NETWORK, of, times, source=told[0], provenance=told[1])
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture
def own_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the user's library, which is used in addition to the bundled library."""
    monkeypatch.setenv("TRACE_LIBRARY", str(tmp_path))
    monkeypatch.setattr(catalogue, "user_folder", lambda: tmp_path / "nobody")
    return tmp_path


def test_library_files_of_six_gpus_and_36_networks_take_less_than_a_megabyte() -> None:
    files = [read_cells(catalogue.BUNDLED / f"{name}.cells") for name in ("a100", "k80", "m40", "p100", "rtx6000", "v100")]
    assert {len(file.models) for file in files} == {36}
    assert sum(file.path.stat().st_size for file in files) < 1_000_000
    for file in files:
        assert file.source.repository and len(file.source.commit) == 40
        assert file.cell("vgg11").whole_provenance == file.shared and file.shared["grain"] == "phase"
        assert all(cell.source == file.source and file.source.torch for cell in file.cells())


def test_a_library_entry_is_read_within_20_ms() -> None:
    path = catalogue.BUNDLED / "v100.cells"
    times = []
    for _ in range(5):
        begun = perf_counter()
        read_cells(path).cell("resnet50")
        times.append(perf_counter() - begun)
    assert min(times) < 0.020


def test_the_library_contains_the_published_largest_batch_sizes() -> None:
    ends = {model: catalogue.cell("p100", model) for model in ("resnet50", "vgg16", "densenet121", "alexnet")}
    assert {model: (of.last_batch, of.out_of_memory_batch) for model, of in ends.items()} == {
        "resnet50": (179, 180),
        "vgg16": (175, 176),
        "densenet121": (116, 117),
        "alexnet": (256, None),
    }


@pytest.mark.skipif(not PUBLISHED.exists(), reason="needs the published measurements in ../shared/published")
def test_the_library_contains_published_times_but_no_extrapolated_times(tmp_path: Path) -> None:
    models = ("resnet50", "mnasnet1_3")
    with gzip.open(PUBLISHED, "rt") as file:
        header, *lines = file
    lines = [line for line in lines if line.split(",")[1] in models]
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress("".join([header, *lines]).encode()))
    build(tmp_path / "rows.csv.gz", "0" * 40, tmp_path)
    for path in tmp_path.glob("*.cells"):
        for one in read_cells(path).cells():
            other = read_cells(catalogue.BUNDLED / path.name).cell(one.model)
            assert (one.batches == other.batches).all() and (one.phases_ns["rest"] == other.phases_ns["rest"]).all()
            assert one.last_batch == other.last_batch and (one.peak_bytes == other.peak_bytes).all()

    cells = {(name, model): catalogue.cell(gpu.name, model) for name, gpu in GPUS.items() for model in models}
    rows = list(csv.DictReader([header, *lines]))
    kept = 0
    for row in rows:
        cell, batch = cells[row["gpu"], row["model"]], int(row["batch"])
        if batch <= cell.last_batch:
            times = cell.for_batch(batch)
            assert times.phases_ns["forward"] == round(float(row["forward_s"]) * 1e9) and not times.is_scaled
            kept += 1
    assert 0.7 * len(rows) < kept < len(rows)


def test_times_count_as_extrapolated_if_the_last_ones_form_a_straight_line() -> None:
    measured = np.array([1.0, 2.1, 2.9, 4.2, 5.2, 6.2, 7.3])
    assert first_extrapolated(measured) == 7
    assert first_extrapolated(np.concatenate([measured, 9.0 + 0.5 * np.arange(5)])) == 7


def test_times_between_measured_batch_sizes_are_interpolated_and_marked() -> None:
    cell = a_cell()
    assert (cell.for_batch(2).phases_ns, cell.for_batch(2).is_scaled) == ({"forward": 2000, "rest": 4007}, False)
    assert (cell.for_batch(3).phases_ns, cell.for_batch(3).is_scaled) == ({"forward": 3000, "rest": 6007}, True)
    for beyond in (5, 0):
        with pytest.raises(NotMeasured, match="was not measured; the library has 1 to 4"):
            cell.for_batch(beyond)
    with pytest.raises(NotMeasured, match="Test GPU G9 ran out of memory at batch 5; this run needs batch 6"):
        a_cell(out_of_memory_batch=5).for_batch(6)
    assert cell.for_batch(8, extrapolates=True).phases_ns["forward"] == 8000
    assert a_cell(batches=(4,)).for_batch(8, extrapolates=True).phases_ns["forward"] == 8000


def test_the_workload_signature_is_scaled_to_the_batch_size() -> None:
    at = a_cell().workload.at_batch(32, 1)
    assert (at.inputs, at.batch_bytes) == ((InputTensor((32, 3, 8, 8), "float32"),), 32 * 776)


columns = st.lists(st.integers(0, 2**50), min_size=1, max_size=40)


@given(columns)
def test_library_cells_are_unchanged_after_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, values: list[int]
) -> None:
    path = tmp_path_factory.mktemp("cells") / "g9.cells"
    batches = np.arange(1, len(values) + 1)
    phases_ns = {"forward": np.array(values), "backward": batches}
    cell = a_cell(batches=tuple(batches), phases_ns=phases_ns, out_of_memory_batch=99)
    cell = replace(cell, spread_ns={"forward": batches}, memory_batches=batches[:1], peak_bytes=batches[:1] << 30)
    write_cells(path, GPU, [cell], {"commit": "abc"})

    back = read_cells(path).cell("net")

    assert back.phases_ns["forward"].tolist() == values and back.out_of_memory_batch == 99 and back.workload == NETWORK
    assert back.phases_ns["backward"].tolist() == batches.tolist() == back.spread_ns["forward"].tolist()
    assert back.peak_bytes.tolist() == [1 << 30] and back.persistent_bytes.tolist() == []
    assert (back.source, back.provenance) == (CellSource(commit="abc"), {"done": "by hand"})


def test_damaged_unrelated_and_newer_files_are_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "g9.cells"
    write_cells(path, GPU, [a_cell()], {})
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at])
        with pytest.raises(TraceFormatError):
            read_cells(path)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with pytest.raises(TraceFormatError):
            read_cells(path).cell("net")
    newer = whole.replace(b"\x93\x01", b"\x93\x02", 1)
    path.write_bytes(newer)
    with pytest.raises(TraceFormatError, match="written by a newer release"):
        read_cells(path)
    path.write_bytes(MAGIC + msgpack.packb([VERSION + 1]))  # a later release may change the structure of the file
    with pytest.raises(TraceFormatError, match="written by a newer release"):
        read_cells(path)
    path.write_bytes(newer)
    with pytest.raises(TraceWriteError, match="batch sizes must be positive and increase"):
        write_cells(path, GPU, [a_cell(batches=(2, 1))], {})
    assert path.read_bytes() == newer and [file.name for file in tmp_path.iterdir()] == ["g9.cells"]


@pytest.mark.parametrize(
    ("place", "value", "error"),
    [
        (["gpu"], {}, "damaged: 'name'"),
        (["provenance"], [], "damaged: provenance is not an object"),
        (["cells"], [{"model": "net"}, {"model": "net"}], "damaged: two entries for one model"),
        (["cells", 0, "workload"], [], "net: "),
        (["cells", 0, "provenance"], [], "net: provenance is not an object"),
        (["cells", 0, "out_of_memory_batch"], 0, "net: out_of_memory_batch is not a batch size"),
        (["cells", 0, "out_of_memory_batch"], 5.0, "net: out_of_memory_batch is not a batch size"),
        (["cells", 0, "out_of_memory_batch"], 4, "net: out of memory at batch 4, but batch 4 was measured"),
        (["cells", 0, "out_of_memory_batch"], 5, None),
        (["cells", 0, "columns"], {}, "net: no batch size was measured"),
        (["cells", 0, "columns", "forward", 0], 0, "net: forward: not a valid column"),
        (["cells", 0, "columns", "forward", 0], (1 << 16) + 1, "net: forward: not a valid column"),
    ],
)
def test_a_wrong_value_in_a_file_with_a_valid_checksum_is_described(
    place: list[Any], value: object, error: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "g9.cells"
    write_cells(path, GPU, [a_cell()], {})
    _, _, body = msgpack.unpackb(path.read_bytes()[len(MAGIC) :])
    changed = msgpack.unpackb(body)
    of = changed
    for key in place[:-1]:
        of = of[key]
    of[place[-1]] = value
    body = msgpack.packb(changed)
    path.write_bytes(MAGIC + msgpack.packb([VERSION, zlib.crc32(body), body]))
    if error is None:
        assert read_cells(path).cell("net").batches.tolist() == [1, 2, 4]
    else:
        with pytest.raises(TraceFormatError, match=re.escape(error)):
            read_cells(path).cells()


def test_times_of_more_than_two_years_are_impossible(tmp_path: Path) -> None:
    path = tmp_path / "g9.cells"
    write_cells(path, GPU, [a_cell(phases_ns={"forward": np.array([1, 2, (1 << 56) - 1])})], {})
    assert read_cells(path).cell("net").phases_ns["forward"][-1] == (1 << 56) - 1
    write_cells(path, GPU, [a_cell(phases_ns={"forward": np.array([1, 2, 1 << 56])})], {})
    with pytest.raises(TraceFormatError, match="net: forward: contains impossible numbers"):
        read_cells(path).cell("net")


def test_files_without_a_version_or_above_64_mib_are_not_cell_files(tmp_path: Path) -> None:
    path = tmp_path / "g9.cells"
    contents: list[object] = [{}, [], ["1"]]
    for content in contents:
        path.write_bytes(MAGIC + msgpack.packb(content))
        with pytest.raises(TraceFormatError, match="damaged: no version"):
            read_cells(path)
    path.write_bytes(b"")
    for size_bytes, error in ((64 << 20, "not a .cells file$"), ((64 << 20) + 1, "the file is larger than 64 MiB")):
        os.truncate(path, size_bytes)
        with pytest.raises(TraceFormatError, match=error):
            read_cells(path)
    with pytest.raises(TraceWriteError, match="No such file or directory"):
        write_cells(tmp_path / "missing/g9.cells", GPU, [a_cell()], {})


def test_a_gpu_is_found_by_its_name_or_by_part_of_the_device_name(own_library: Path) -> None:
    assert catalogue.gpu("v100").device == catalogue.gpu("Tesla V100-PCIE-32GB").device == "Tesla V100-PCIE-32GB"
    assert catalogue.gpu("RTX 6000").name == "rtx6000"
    with pytest.raises(TraceLibraryError, match=r"has no GPU v10 \(did you mean v100 .*\?\); it has: a100, k80, m40"):
        catalogue.gpu("v10")
    with pytest.raises(TraceLibraryError, match=r"no v100/resnet5 \(did you mean resnet50"):
        catalogue.find_cell("v100/resnet5")


@pytest.mark.parametrize(
    ("source", "grain", "text"),
    [
        (CellSource(repository="https://a.org/figures", commit="0123456789ab", source="a/b"), "phase", "figures 0123456789"),
        (CellSource(source="papers/one.pdf", grain="step"), "step", "one.pdf"),
        (CellSource(study="a study"), "phase", ""),
    ],
)  # fmt: skip
def test_a_library_entry_is_listed_with_its_repository_or_source(
    own_library: Path, source: CellSource, grain: str, text: str
) -> None:
    write_cells(own_library / "one.cells", GPU, [a_cell(source=source)], {})
    (entry,) = (entry for entry in all_entries() if entry.name == "g9/net")
    assert (entry.source_text, entry.grain, entry.batches, entry.kind) == (text, grain, (1, 4), "cells")


def test_a_recording_in_the_library_is_listed_with_its_source(own_library: Path) -> None:
    """GIVEN two recordings in the user's folder THEN the list shows the source of each. Without a source, the list shows
    "recording"."""
    trace = trace_of(a_cell(), 2)
    (own_library / "g9").mkdir()
    for name, source in (("g9/a.msgpack", ""), ("b.msgpack", "trace record")):
        trace.runs = {0: Run(source)}
        save(trace, own_library / name)
    own = [entry for entry in all_entries() if entry.kind == "recording" and entry.path.is_relative_to(own_library)]
    assert [(of.name, of.model, of.source) for of in own] == [("b", "b", "trace record"), ("g9/a", "a", "recording")]


def test_steps_made_from_measured_times_follow_each_other_without_gaps() -> None:
    """GIVEN steps of 30 and 40 ns THEN each phase begins when the phase before ends, on the host and on the GPU. Without steps,
    the trace has one step and no phases."""
    steps = [{"forward": 10, "backward": 20}, {"optimizer": 5, "forward": 35}]
    trace = trace_with_step_times(blank_trace(GPU), steps, ["g9/net"], None)
    assert (trace.steps.start_ns.tolist(), trace.steps.duration_ns.tolist()) == ([0, 30], [30, 40])
    phases = trace.phases
    assert [trace.strings[name] for name in phases.name] == ["forward", "backward", "forward", "optimizer"]
    assert phases.start_ns.tolist() == phases.device_start_ns.tolist() == [0, 10, 30, 65]
    assert phases.device_end_ns.tolist() == [10, 30, 65, 70]
    empty = trace_with_step_times(blank_trace(GPU, CellSource(study="one"), {"done": 1}), [], [], None)
    assert (len(empty.steps), len(empty.phases)) == (1, 0)
    assert (empty.provenance["done"], blank_trace(GPU, CellSource(study="one")).provenance["study"]) == (1, "one")


def test_user_files_are_added_and_duplicate_names_are_rejected(own_library: Path) -> None:
    write_cells(own_library / "mine.cells", GPU, [a_cell()], {})
    (own_library / "broken.cells").write_bytes(b"nothing")
    assert catalogue.find_cell("g9/net").last_batch == 4 and "g9" in [gpu.name for gpu in catalogue.gpus()]
    assert catalogue.faults() == [str(TraceFormatError(own_library / "broken.cells", 0, "not a .cells file"))]
    write_cells(own_library / "again.cells", GPU, [a_cell()], {})
    with pytest.raises(TraceLibraryError, match=r"g9/net is in two files, .*again\.cells and .*mine\.cells"):
        catalogue.find_cell("g9/net")
    write_cells(own_library / "again.cells", GPU, [a_cell(), replace(a_cell(), model="b")], {})
    write_cells(own_library / "mine.cells", GPU, [a_cell(), replace(a_cell(), model="b")], {})
    told = [fault for fault in catalogue.faults() if "two files" in fault]
    assert len(told) == 1 and told[0].startswith("g9/b and 1 more are in two files, ")


def test_the_library_finds_the_model_of_a_script_or_the_most_similar_one(own_library: Path) -> None:
    script = catalogue.cell("v100", "resnet50").workload.at_batch(32, 1)
    found = catalogue.match("v100", script)
    assert found.is_same and found.cell.name == "v100/resnet50"
    # A network stays the same if a wrapper module contains it, or if its activation modules have other names.
    wrapped = replace(script, modules={"Wrapper": 1, **(script.modules or {}), "ReLU": 1})
    assert catalogue.match("v100", wrapped).is_same

    other_ways = replace(script, optimizer="AdamW", autocast="float16", trainable_parameters=5)
    found = catalogue.match("v100", other_ways)
    assert found.cell.name == "v100/resnet50" and found.differences == (
        "trainable parameters 25,557,032 in the library, 5 in the script",
        "optimizer SGD in the library, AdamW in the script",
        "autocast off in the library, float16 in the script",
    )
    larger = replace(script, inputs=(InputTensor((32, 3, 288, 288), "float32"),))
    assert catalogue.match("v100", larger).differences == (
        ("inputs Nx3x224x224 float32 in the library, 32x3x288x288 float32 in the script"),
    )

    two_layers = WorkloadSignature(parameters=72, parameter_bytes=288, modules={"Linear": 1})
    found = catalogue.match("v100", two_layers)
    assert not found.scalable and found.differences[0].endswith("parameters in the library, 72 in the script")
    assert not match_with(catalogue.cell("v100", "resnet18"), script).is_same


def test_each_bundled_network_matches_no_other_network(own_library: Path) -> None:
    for model in catalogue.models("k80"):
        assert catalogue.match("k80", catalogue.cell("k80", model).workload).cell.model == model


@pytest.mark.parametrize(
    ("batch", "forward_ns"), [(1, 2500), (2, 3000), (3, 3500), (4, 4000), (6, 6500), (8, 9000), (10, 11_500)]
)
def test_times_outside_the_measured_range_are_extrapolated_linearly(batch: int, forward_ns: int) -> None:
    """Below the measured range, the line goes through the first and the middle batch. Above the range, the line goes through
    the middle and the last batch."""
    cell = a_cell(batches=(2, 4, 8), phases_ns={"forward": np.array([3000, 4000, 9000])})
    assert cell.for_batch(batch, extrapolates=True).phases_ns == {"forward": forward_ns}
    assert cell.for_batch(batch, extrapolates=True).is_scaled is (batch not in (2, 4, 8))


@pytest.mark.parametrize(
    ("batches", "peaks", "batch", "peak"),
    [
        ((2, 4), (14, 22), 2, 14), ((2, 4), (14, 22), 3, 18), ((2, 4), (14, 22), 4, 22), ((2, 4), (14, 22), 7, 34),
        ((2, 4), (14, 22), 1, 10), ((4,), (22,), 9, 22), ((), (), 9, None),
    ],
)  # fmt: skip
def test_the_memory_peak_is_assumed_to_grow_linearly_with_the_batch_size(
    batches: tuple[int, ...], peaks: tuple[int, ...], batch: int, peak: int | None
) -> None:
    cell = a_cell(memory_batches=np.array(batches, np.int64), peak_bytes=np.array(peaks, np.int64))
    assert cell.peak_at(batch) == peak


@pytest.mark.parametrize(("limit", "batch", "out_of_memory"), [(8, 8, True), (8, 9, True), (8, 7, False), (None, 9, False)])
def test_a_batch_size_that_failed_runs_out_of_memory(limit: int | None, batch: int, out_of_memory: bool) -> None:
    assert NotMeasured(a_cell(out_of_memory_batch=limit), batch).out_of_memory is out_of_memory


TWO = np.array([1, 2])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, None),
        ({"batches": np.array([], np.int64)}, "no batch size was measured"),
        ({"phases_ns": {"rest": np.array([1, 2, 3])}}, "no times of the forward pass"),
        ({"batches": np.array([1, 2, 2])}, "batch sizes must be positive and increase"),
        ({"batches": np.array([0, 2, 4])}, "batch sizes must be positive and increase"),
        ({"phases_ns": {"forward": TWO}}, "forward has 2 values for 3 batch sizes"),
        ({"phases_ns": {"forward": np.array([0, 1, -1])}}, "forward is negative"),
        ({"phases_ns": {"forward": np.array([0, 1, 1])}}, None),
        ({"memory_batches": TWO, "peak_bytes": TWO}, None),
        (
            {"memory_batches": TWO, "peak_bytes": np.array([1])},
            "peak_bytes must have 2 values of at least 0, one per batch size",
        ),
        (
            {"memory_batches": TWO, "peak_bytes": np.array([1, -1])},
            "peak_bytes must have 2 values of at least 0, one per batch size",
        ),
        ({"memory_batches": np.array([2, 2]), "peak_bytes": TWO}, "batch sizes must be positive and increase"),
        ({"out_of_memory_batch": 4}, "out of memory at batch 4, but batch 4 was measured"),
        ({"out_of_memory_batch": 5}, None),
    ],
)
def test_the_first_error_in_an_entry_is_described(changes: dict[str, Any], error: str | None) -> None:
    assert fault(a_cell(**changes)) == error


@pytest.mark.parametrize(
    ("typed", "device"),
    [
        ("v100", "Tesla V100-PCIE-32GB"),  # the other V100 models were not measured
        ("V100 16GB SXM2", "Tesla V100-SXM2-16GB"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("a100-80gb", "NVIDIA A100 80GB PCIe"),  # the measured A100 has 40 GB
        ("A100 MIG 3g.20gb", "A100 MIG 3g.20gb"),
    ],
)
def test_a_gpu_name_selects_a_measured_gpu_or_a_data_sheet(typed: str, device: str) -> None:
    assert catalogue.device_named(typed) == device

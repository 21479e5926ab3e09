"""Tests how much memory the unpacked data of one file may use."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from traces.format.items import unpacked_bytes
from traces.format.trace_file import load, save
from traces.format.unpack_limit import VARIABLE, TooLarge, UnpackLimit, size_text
from traces.model.trace import NONE, Device, DeviceSpans, HostSpans, Thread, Trace, TraceFormatError


def test_the_memory_limit_grows_with_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    base = UnpackLimit.of(0).limit_bytes
    assert base is not None and UnpackLimit.of(1000).limit_bytes == base + 128_000
    assert [UnpackLimit.least_file_bytes(base + extra) for extra in (-1, 0, 1, 128, 129)] == [0, 0, 1, 1, 2]


def test_unpacked_data_up_to_the_limit_is_accepted() -> None:
    limit = UnpackLimit(4000, 2_000_000)
    limit.check(2_000_000, "a table")
    with pytest.raises(TooLarge, match=f"^a table, from a file of 4 kB; the limit is 2.0 MB. .* set {VARIABLE}=9$"):
        limit.check(2_000_001, "a table")
    UnpackLimit(1, None).check(1 << 60, "a trusted table")


@pytest.mark.parametrize(("value", "limit_bytes"), [("4000", 4_000_000_000), ("0", 0), ("9" * 12, 999_999_999_999 * 10**6)])
def test_an_environment_variable_sets_the_memory_limit_in_megabytes(
    value: str, limit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert UnpackLimit.of(10**9) == UnpackLimit(10**9, limit_bytes)


@pytest.mark.parametrize("value", ["", "-1", "4.5", "4 GB", "9" * 13])
def test_an_invalid_memory_limit_is_rejected(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(TooLarge, match="give a whole number of megabytes"):
        UnpackLimit.of(1)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 kB"), (1, "1 kB"), (1000, "1 kB"), (1001, "2 kB"), (999_999, "1000 kB"), (10**6, "1.0 MB"),
        (99_900_000, "99.9 MB"), (10**8, "100 MB"), (25 * 10**8, "2500 MB"),
    ],
)  # fmt: skip
def test_sizes_in_messages_have_units(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_a_saved_trace_is_long_enough_for_its_own_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN 20,000 ops, which compress to a few bytes WHEN the memory limit depends only on the file's length THEN the file can
    be read."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("traces.format.unpack_limit._BASE_BYTES", 0)
    trace = Trace(threads=[Thread(0, 1, "main")])
    trace.host = HostSpans.of(name=[trace.strings.add("op")] * 20_000, start_ns=range(20_000), duration_ns=[1] * 20_000)
    save(trace, tmp_path / "t.msgpack")
    assert len(load(tmp_path / "t.msgpack").host) == 20_000
    assert unpacked_bytes(trace) <= 128 * (tmp_path / "t.msgpack").stat().st_size


@pytest.mark.parametrize(
    ("streams", "largest"), [(0, "rows and texts that take"), (40, "42 threads, devices, streams and loaders")]
)
@pytest.mark.parametrize(("less_bytes", "fits"), [(0, True), (1, False)])
def test_the_memory_limit_includes_rows_and_texts_and_tracks(
    streams: int, largest: str, less_bytes: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN 2000 ops with different names WHEN the memory limit is one byte too small THEN loading fails."""
    trace = Trace(threads=[Thread(0, 1, "main")], devices=[Device(0, 0, "Tesla V100")])
    names = [trace.strings.add(f"op {number}") for number in range(2000)]
    trace.host = HostSpans.of(name=names, start_ns=range(2000), duration_ns=[1] * 2000)
    trace.device = DeviceSpans.of(stream=range(streams), launch=[NONE] * streams)
    save(trace, tmp_path / "t.msgpack")
    monkeypatch.setattr(UnpackLimit, "of", lambda file_bytes: UnpackLimit(file_bytes, unpacked_bytes(trace) - less_bytes))
    with nullcontext() if fits else pytest.raises(TraceFormatError, match=largest):
        assert len(load(tmp_path / "t.msgpack").strings) == 2000

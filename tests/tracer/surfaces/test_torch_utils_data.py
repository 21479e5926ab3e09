"""Tests the recorded times and sizes of batches that a DataLoader loads or pins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tracer.surfaces import torch_utils_data
from tracer.surfaces.torch_utils_data import _describe, _recorded_loop, _size_of, install
from traces.model.trace import NONE, BatchKind
from traces.script.patching import PATCHES


class Recorder:
    """A fake recorder whose clock starts at 1005 ns and advances by 3 ns at each reading."""

    def __init__(self) -> None:
        self.batches: list[tuple[object, ...]] = []
        self.clock = self
        self.offset_ns = 1000
        self.ns = 2
        self.workload = SimpleNamespace(is_open=False, loading=set())

    def perf_ns(self) -> int:
        self.ns += 3
        return self.ns

    def now_ns(self) -> int:
        return self.perf_ns() + self.offset_ns

    def batch(self, *row: object) -> None:
        self.batches.append(row)

    def loader_of(self, loader: object, describe: object) -> int:
        return 7

    def enter_phase(self, name: str) -> None: ...

    def leave_phase(self, name: str, error: BaseException | None = None) -> None: ...


TWO, THREE = torch.ones(2), torch.ones(3)


@pytest.mark.parametrize(
    ("batch", "size_bytes"),
    [
        (TWO, 8),
        ([TWO, THREE], 20),
        ((TWO, "text"), 8),
        ({"x": THREE}, 12),
        ("text", NONE),
        ([torch.eye(2).to_sparse()], NONE),
        ([torch.eye(2).to_sparse(), TWO], 8),
    ],
)
def test_the_size_of_a_batch_counts_only_its_strided_tensors(batch: object, size_bytes: int) -> None:
    assert _size_of(batch) == size_bytes


def test_a_wait_for_a_batch_is_recorded_with_the_times_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(torch_utils_data, "recorder", lambda: recorder)
    data: Any = [TWO, TWO]
    install(torch)
    try:
        next(iter(DataLoader(data, batch_size=2)))
    finally:
        PATCHES.undo()
    assert recorder.batches == [(BatchKind.WAIT, 7, 1005, 1008, 16)]


def test_a_data_set_without_a_usable_length_is_recorded_without_a_length() -> None:
    """Keras wraps arrays in data sets whose `__len__` raises a TypeError. A DataLoader with a sampler does not call
    `__len__`."""

    class Wrapped:
        def __len__(self) -> int:
            raise TypeError("object of type 'NumpySliceable' has no len()")

    def samples(data: Any) -> int | None:
        return _describe(DataLoader(data, sampler=[0, 1])).samples

    assert samples(Wrapped()) is None and samples(object()) is None
    assert samples([TWO, TWO, TWO]) == 3


def test_pinning_all_tensors_of_a_batch_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that pin the two tensors of the batch are part of the call that pins the batch."""
    recorder = Recorder()
    monkeypatch.setattr(torch_utils_data, "recorder", lambda: recorder)
    module: Any = SimpleNamespace()

    def pin(data: Any, device: object = None) -> Any:
        return [module.pin_memory(part, device) for part in data] if isinstance(data, list) else data

    module.pin_memory = pin
    assert _recorded_loop(module)(lambda: module.pin_memory([TWO, THREE])) == [TWO, THREE]
    assert recorder.batches == [(BatchKind.PIN, 0, 1005, 1014, 20)]  # the inner calls read the clock twice

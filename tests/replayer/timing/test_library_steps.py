"""Tests steps with times from the library. The network takes 1 ms per sample in the forward pass, and 2 ms in the rest of a
step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from replayer.gpu.virtual_gpu import ScriptLinks, VirtualGpu
from replayer.op_signature import OpSignature
from replayer.recording.library_pace import LibraryPace
from tests.replayer.recording.test_library_pace import GPU, MODEL, NETWORK
from tests.replayer.recordings import US, FakeClock, Log
from tests.traces.library.test_library_cells import a_cell
from traces.library.cell_traces import blank_trace
from traces.library.cells import write_cells
from traces.script.configuration import LibraryChoice

MS = 1_000_000
MM = OpSignature("aten::mm", ((4, 4),), ("float32",))


class NestedPauses(FakeClock):
    """Fakes a clock that is paused until `resume` was called as often as `pause`."""

    pauses = 0

    def pause(self) -> None:
        self.pauses += 1

    def resume(self) -> None:
        self.pauses -= 1


class Script:
    def __init__(self, folder: Path) -> None:
        times = {"forward": np.array([1, 2, 4]) * MS, "rest": np.array([2, 4, 8]) * MS}
        path = folder / "v100.cells"
        write_cells(path, GPU, [a_cell(gpu=GPU, workload=replace(NETWORK, parameter_bytes=4_000), phases_ns=times)], {})
        optimizers: Any = SimpleNamespace(class_name="SGD", __len__=lambda: 1)
        self.clock, self.log = NestedPauses(), Log()
        pace = LibraryPace(LibraryChoice((path,), estimate=False), optimizers)
        links = ScriptLinks(library_pace=pace)
        self.gpu = VirtualGpu(blank_trace(GPU), 0, self.clock, self.log, links=links)  # type: ignore[arg-type]

    def call(self, batch: int, *, grad: bool = True) -> None:
        steps = self.gpu.steps
        watch: Callable[..., Callable[[], None]] = steps.workload.on_every_call  # type: ignore[assignment]
        returned = watch(MODEL, [((batch, 8), "float32")], "off", grad)
        steps.module_called(id(MODEL), grad)
        assert self.clock.pauses == 1
        self.gpu.launches.launch(MM, 0)
        steps.module_returned()
        returned()
        assert self.clock.pauses == 0

    def within(self, phase: str, host_ns: int = 0) -> None:
        self.gpu.steps.enter_phase(phase)
        assert self.clock.pauses == 1
        self.clock.time_ns += host_ns
        self.gpu.launches.launch(MM, 0)
        self.gpu.steps.leave_phase(phase)
        assert self.clock.pauses == 0

    def step(self, batch: int) -> None:
        self.within("zero_grad")
        self.call(batch)
        self.within("backward")
        self.within("optimizer")
        self.gpu.steps.optimizer_stepped(True)

    def lengths_ms(self) -> list[float]:
        return [(end_ns - start_ns) / MS for start_ns, end_ns, _ in self.log.steps]


def test_a_step_takes_the_published_time_of_its_batch(tmp_path: Path) -> None:
    script = Script(tmp_path)
    for batch in (2, 2, 4, 2, 1):
        script.step(batch)
    script.gpu.streams.synchronize_device(0)
    assert script.lengths_ms()[1:] == pytest.approx([6, 6, 12, 6], abs=0.01)
    forward = [(end - start) / MS for name, _, _, start, end in script.log.phases if name == "forward"]
    assert forward == pytest.approx([2, 2, 4, 2, 1], abs=0.01)


def test_a_phase_has_no_lag_if_its_gpu_time_exceeds_its_host_time(tmp_path: Path) -> None:
    """For two samples, the loss, the backward pass and the optimizer take 4 ms on the GPU. The host needs only 1 ms for the
    backward pass."""
    script = Script(tmp_path)
    stats = script.gpu.simulator.stats
    script.step(2)
    script.within("zero_grad")
    script.call(2)
    script.within("backward", MS)
    script.within("optimizer")
    assert stats.lag_ns == 0


def test_a_slow_host_between_steps_makes_steps_longer(tmp_path: Path) -> None:
    """A pause of 1 ms after a step has no effect, because the GPU still has work. A pause of 50 ms makes the next step
    longer."""
    script = Script(tmp_path)
    for late_ms in (0, 0, 1, 50, 0):
        script.clock.time_ns += late_ms * MS
        script.step(2)
    lengths = script.lengths_ms()
    assert lengths[1:3] == pytest.approx([6, 6], abs=1.01) and 50 <= lengths[3] <= 57
    assert sum(lengths[1:]) >= 4 * 6 + 44
    assert [row["duration_ns"] > US for row in script.log.device[-3:]].count(True) >= 2

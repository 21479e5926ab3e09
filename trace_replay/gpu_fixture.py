"""Implements the pytest fixture `gpu`, which checks the step time, the memory and the synchronizations of a test.

    def test_step(gpu):
        train()
        gpu.assert_fits("6GiB")
        gpu.assert_no_syncs()
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

from trace_replay.packages import our_packages
from trace_replay.virtual_gpu import InProcessGpu, ReplayReport

if TYPE_CHECKING:
    from traces.model.trace import Trace

_LIBRARIES = ("torch", "trace_replay", "replayer", "traces", "_trace_", "importlib", "contextlib", "functools")
_FOREVER_NS = 1 << 62


class GpuChecks:
    """Checks the step time and memory peak of one test. Work of earlier tests is ignored."""

    def __init__(self, gpu: InProcessGpu) -> None:
        self.gpu = gpu
        self._begin_ns = gpu.now_ns() or 0
        self._waits: Counter[str] = Counter()
        gpu.on_wait(self._waited)

    def close(self) -> None:
        if self.gpu.is_running:
            self.gpu.on_wait(None)

    def timeline(self) -> Trace:
        trace = self.gpu.timeline()
        with our_packages():
            from traces.combining.excerpt import excerpt_between

            return excerpt_between(trace, self._begin_ns, _FOREVER_NS)

    def compare(self, recording: Trace | str | os.PathLike[str], tolerance: float = 0.05) -> ReplayReport:
        """Compare the test's timeline with a recording, and return a report."""
        __tracebackhide__ = True
        from trace_replay import traces

        try:
            return self.gpu.compare_with(recording, self.timeline(), tolerance)
        except traces.TraceError as error:  # hide our own functions, so that pytest prints the line of the test
            raise error.with_traceback(None) from None

    @property
    def peak_memory(self) -> int:
        """Return the peak of reserved GPU memory during the test, in bytes. With several devices, return the highest peak."""
        memory = self.gpu.timeline().memory
        peaks = [0]
        for device in set(memory.device.tolist()):
            of_device = memory.device == device
            during = memory.reserved_bytes[of_device & (memory.time_ns >= self._begin_ns)]
            before = memory.reserved_bytes[of_device & (memory.time_ns < self._begin_ns)]
            peaks += [int(during.max(initial=0)), *before[-1:].tolist()]
        return max(peaks)

    def assert_fits(self, size: str) -> None:
        """Fail if the test reserved more memory than `size`, such as "16GiB"."""
        __tracebackhide__ = True
        with our_packages():
            from tui.formatting import size_text
            from tui.memory_sizes import parse_sizes

            (limit_bytes,) = parse_sizes(size)
            peak_bytes = self.peak_memory
            text = f"the test reserves {size_text(peak_bytes)} of GPU memory at its peak, but the limit is {size}"
        if peak_bytes > limit_bytes:
            raise AssertionError(text)

    def assert_step_time(self, recording: Trace | str | os.PathLike[str], within: float = 0.05) -> None:
        """Fail if the step time and the recorded step time differ by more than `within` (0.05 means 5 %)."""
        __tracebackhide__ = True
        steps = self.compare(recording, within).comparison.steps
        if steps.error is None or steps.recorded_ns is None or steps.replayed_ns is None:
            raise AssertionError("the step times cannot be compared: the recording or the test has no complete step")
        if abs(steps.error) > within:
            raise AssertionError(
                f"the step time is {steps.replayed_ns / 1e6:.3f} ms, but {steps.recorded_ns / 1e6:.3f} ms were recorded: the"
                f" difference of {steps.error:+.1%} exceeds the limit of {within:.1%}"
            )

    def assert_same_program(self, recording: Trace | str | os.PathLike[str]) -> None:
        __tracebackhide__ = True
        report = self.compare(recording)
        if report.is_same_program is None:
            raise AssertionError(f"the traces do not show whether the test runs the recorded program:\n{report}")
        if not report.is_same_program:
            raise AssertionError(f"the test does not run the recorded program:\n{report}")

    def assert_no_syncs(self) -> None:
        """Fail if the test waited for the GPU, for example to read a value."""
        __tracebackhide__ = True
        if self._waits:
            places = "\n".join(
                f"  {place}" + (f" ({count} times)" if count > 1 else "") for place, count in self._waits.items()
            )
            raise AssertionError(f"the host waited for the GPU:\n{places}")

    def _waited(self) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_LIBRARIES):
            frame = frame.f_back
        self._waits[f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"] += 1

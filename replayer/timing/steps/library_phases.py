"""Looks up the durations of training phases in the library of measured models.

    phases = LibraryPhases(library)
    segment.recorded = phases.begin("backward")      # None if the library has no time for the phase
    phases.end("backward", segment.recorded, device_ns)

See Note [Phase times from the library] in step_tracker.py.
"""

from __future__ import annotations

from replayer.recording.library_pace import COUNTED_ELSEWHERE_NS, LibraryPace, ModelCall
from replayer.recording.recorded_step import RecordedSegment
from traces.model.trace import Origin


class LibraryPhases:
    def __init__(self, library: LibraryPace, slowdown: float = 1.0) -> None:
        self._library, self._slowdown = library, slowdown
        self._segments: dict[str, RecordedSegment] = {}  # one object per phase, because caches belong to the object
        self._before_backward_ns = 0

    def begin(self, name: str) -> RecordedSegment | None:
        """Return a phase with its published GPU time, or None if no time was published."""
        known = self._library.phase(name)
        if known is None:
            return None
        device_ns, origin = round(known[0] * self._slowdown) if known[0] > COUNTED_ELSEWHERE_NS else known[0], known[1]
        if name == "backward":
            device_ns -= min(self._before_backward_ns, device_ns // 10)
            self._before_backward_ns = 0
        return self._segment(name, device_ns, origin)

    def end(self, name: str, recorded: RecordedSegment | None, device_ns: int) -> None:
        if recorded is not None and recorded.device_ns == COUNTED_ELSEWHERE_NS:
            self._before_backward_ns += device_ns
        elif name == "forward":
            self._before_backward_ns = 0

    def take_call(self) -> ModelCall | None:
        """Return the published times of the next model call, or None if the model was not measured."""
        call = self._library.take_call()
        if call is not None:
            self._library.called(call)
        return call

    def prolonged(self, name: str, before_ns: int, call: ModelCall) -> RecordedSegment:
        """Return a phase that takes `before_ns` plus the model's published forward time."""
        return self._segment(name, before_ns + max(round(call.phases_ns["forward"] * self._slowdown), 1), call.origin)

    def set_up_ends(self) -> None:
        self._library.set_up_ends()

    def step_ended(self, *, trained: bool) -> int:
        return self._library.step_ended(trained=trained)

    def _segment(self, name: str, device_ns: int, origin: Origin) -> RecordedSegment:
        recorded = self._segments.setdefault(name, RecordedSegment(name))
        recorded.device_ns, recorded.origin = device_ns, origin
        return recorded

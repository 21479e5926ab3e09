"""Repeats a script's memory requests for another GPU or batch size, to find out whether the script fits.

    outcome = run_requests(log, Capacity(16 << 30, 400 << 20))      # Outcome(fits=True, peak_bytes=..., ...)
    scaled = ScaledRequests.of(log_16, 16, log_32, 32)      # two runs of the script with different batch sizes
    scaled.for_batch(100)                                          # the requests at batch size 100; the script does not run
    largest_batch(lambda batch: run_requests(scaled.for_batch(batch), capacity).fits, 32)      # 117: 118 does not fit

Note [Requests are linear in the batch]
    Each tensor has a constant size (weights) or a size per sample (activations). Two runs with different batch sizes show how
    each memory request grows with the batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from replayer.memory.capacity import Capacity
from replayer.memory.device.blocks import Block
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.device.request_log import LogEntry, RequestKind, RequestLog
from replayer.memory.device.settings import AllocatorSettings

_SIZED = (RequestKind.REQUEST, RequestKind.OPTIONAL)
MAX_BATCH = 1 << 24  # no script uses as many samples


@dataclass(frozen=True)
class Outcome:
    fits: bool
    peak_bytes: int
    reserved_bytes: int
    retries: int  # number of requests that were repeated after cached memory was freed
    steps: int
    asked_bytes: int = 0  # size of the failed request
    seen_bytes: int = 0  # allocated bytes that the script could see


def run_requests(
    log: RequestLog, capacity: Capacity, settings: AllocatorSettings | None = None, *, has_optional: bool = True
) -> Outcome:
    """Execute memory requests on an emulated GPU until its memory is full. `has_optional=False` skips the optional workspaces
    of cuDNN."""
    memory = DeviceMemory(0, *capacity, settings=settings)
    free, request, optional = RequestKind.FREE, RequestKind.REQUEST, RequestKind.OPTIONAL
    step, look = RequestKind.STEP, RequestKind.LOOK
    blocks: list[Block | None] = []
    given_up: set[int] = set()  # see Note [Failed convolution workspaces] in scratch_memory.py
    steps, asked_bytes, seen_bytes, fits = 0, 0, 0, True
    for kind, value, stream, use in log.entries:
        if kind is free:
            block = blocks[value]
            if block is not None:
                memory.free(block)
        elif kind is optional and (not has_optional or use in given_up):
            blocks.append(None)
        elif kind is request or kind is optional:
            try:
                blocks.append(memory.malloc(value, stream))
            except OutOfMemory:
                if kind is request:
                    asked_bytes, fits = value, False
                    break
                given_up.add(use)
                blocks.append(None)
        elif kind is step:
            steps += 1
        elif kind is look:
            seen_bytes = max(seen_bytes, memory.usage.allocated_bytes)
        else:
            memory.empty_cache()
    peaks = memory.usage.peak_allocated_bytes, memory.usage.peak_reserved_bytes
    return Outcome(fits, *peaks, memory.counts.retries, steps, asked_bytes, seen_bytes)


class ScaledRequests:
    # see Note [Requests are linear in the batch]

    def __init__(self, log: RequestLog, batch: int, per_sample: list[float]) -> None:
        self._kinds = [entry.kind for entry in log.entries]
        self._streams = [entry.stream for entry in log.entries]
        self._uses = [entry.use for entry in log.entries]
        values = [entry.value for entry in log.entries]
        self._values, self._batch, self._per_sample = np.array(values, np.int64), batch, np.array(per_sample)

    @classmethod
    def of(cls, first: RequestLog, first_batch: int, second: RequestLog, second_batch: int) -> ScaledRequests | None:
        """Fit the size of each memory request as a function of the batch size, from two runs. Return None if their requests
        differ."""
        a, b = first.entries, second.entries
        if len(a) != len(b) or first_batch == second_batch or not all(map(_is_same_request, a, b)):
            return None
        samples = second_batch - first_batch
        return cls(first, first_batch, [(of_b.value - of_a.value) / samples for of_a, of_b in zip(a, b, strict=True)])

    def for_batch(self, batch: int) -> RequestLog:
        grown = np.ceil(self._values + (batch - self._batch) * self._per_sample).astype(np.int64)
        values = np.where(self._per_sample != 0, np.maximum(grown, 1), self._values).tolist()
        return RequestLog(list(map(LogEntry, self._kinds, values, self._streams, self._uses)))


def _is_same_request(a: LogEntry, b: LogEntry) -> bool:
    return a.kind == b.kind and a.stream == b.stream and (a.kind in _SIZED or a.value == b.value)


def largest_batch(fits: Callable[[int], bool], start: int) -> int:
    """Return the largest batch size that fits, between 0 and MAX_BATCH."""
    low, high, step = 0, start, max(1, start // 2)
    while fits(high):
        if high >= MAX_BATCH:
            return MAX_BATCH
        low, high, step = high, min(high + step, MAX_BATCH), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

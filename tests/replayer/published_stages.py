"""Contains the published times of the nn.DataParallel stages on two P100s, and reads the stage times of a replay."""

from __future__ import annotations

from typing import Any

# Maps (stage, GPU) to milliseconds on the host and milliseconds between CUDA events.
PUBLISHED_MS = {
    ("scatter", 0): (6.7, 6.7),
    ("replicate", 0): (6.2, 6.2),
    ("parallel_apply", 0): (247.3, 255.5),
    ("parallel_apply", 1): (247.3, 255.5),
    ("gather", 0): (8.5, 0.3),
    ("gather_backward", 0): (2.2, 2.2),
    ("broadcast_backward", 0): (5.7, 5.7),
}


def stages_ns(log: Any, step: int) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the host and device time of the stages of a step, by name and device."""
    count = len(log.parts) // len(log.steps)
    return {
        (name, device): (end - start, device_end - device_start)
        for _, name, _, start, end, device, device_start, device_end, _ in log.parts[step * count : (step + 1) * count]
    }

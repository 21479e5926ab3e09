"""Defines the type of JSON objects that torch.profiler writes.

    def rank_of(header: ProfilerJson) -> int: ...
"""

from __future__ import annotations

from typing import Any, TypeAlias

ProfilerJson: TypeAlias = dict[str, Any]
"""An event, the `args` of an event, or the header of a profile. The keys and types depend on the PyTorch release."""

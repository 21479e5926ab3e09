"""Wraps torch.amp.GradScaler. The time of unscaling gradients belongs neither to the backward phase nor to the optimizer phase.

    scaler.scale(loss).backward()
    scaler.step(optimizer)      # unscales first
    scaler.update()
"""

from __future__ import annotations

from operator import methodcaller
from types import ModuleType
from typing import Any

from tracer.surfaces.listening import before
from traces.script.patching import patch


def install(torch: ModuleType) -> None:
    """Wrap the methods of GradScaler that launch GPU work. torch.cuda.amp.GradScaler inherits the wrapped methods."""
    cls: Any = torch.amp.GradScaler
    report = methodcaller("aside_called")
    patch(cls, _unscale_grads_=before(cls._unscale_grads_, report), update=before(cls.update, report))

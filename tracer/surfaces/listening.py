"""Reporting a call to the recorder before it is made.

patch(F, mse_loss=before(F.mse_loss, "loss_called"))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer.state import recorder
from traces.script.patching import around


def before(call: Callable[..., Any], report: str) -> Callable[..., Any]:
    """`call`, with the recorder's method `report` called first where this process is recorded."""

    def reported(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if (to := recorder()) is not None:
            getattr(to, report)()
        return call(*args, **kwargs)

    return around(call, reported)

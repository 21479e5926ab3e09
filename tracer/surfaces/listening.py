"""Wraps functions so that each call is reported to the recorder before the call is made.

patch(F, mse_loss=before(F.mse_loss, "loss_called"))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer.state import recorder
from traces.script.patching import around


def before(call: Callable[..., Any], report: str) -> Callable[..., Any]:
    """Wraps `call` so that the recorder's method `report` is called first. Processes without a recorder report nothing."""

    def reported(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if (to := recorder()) is not None:
            getattr(to, report)()
        return call(*args, **kwargs)

    return around(call, reported)

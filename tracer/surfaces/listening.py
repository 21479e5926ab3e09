"""Wraps functions so that each call is reported to the recorder before the function runs.

    patch(F, mse_loss=before(F.mse_loss, lambda to: to.loss_called()))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer.state import recorder
from traces.script.patching import stands_for


def before(call: Callable[..., Any], report: Callable[[Any], object]) -> Callable[..., Any]:
    @stands_for(call)
    def reported(*args: Any, **kwargs: Any) -> Any:
        if (to := recorder()) is not None:
            report(to)
        return call(*args, **kwargs)

    return reported

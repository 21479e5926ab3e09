"""Reporting a call to the recorder before it is made.

patch(F, mse_loss=before(F.mse_loss, lambda recorder: recorder.loss_called()))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from tracer.state import recorder

if TYPE_CHECKING:
    from tracer.recorder import Recorder


def before(call: Callable[..., Any], report: Callable[[Recorder], None]) -> Callable[..., Any]:
    """`call`, with `report` called first where this process is recorded."""

    @wraps(call)
    def reported(*args: Any, **kwargs: Any) -> Any:
        if (to := recorder()) is not None:
            report(to)
        return call(*args, **kwargs)

    return reported

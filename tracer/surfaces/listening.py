"""Reporting a call to the recorder before it is made.

    patch(F, mse_loss=before(F.mse_loss, lambda: recorder().loss_called()))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def before(call: Callable[..., Any], report: Callable[[], None]) -> Callable[..., Any]:
    """`call`, with `report` called first."""

    @wraps(call)
    def reported(*args: Any, **kwargs: Any) -> Any:
        report()
        return call(*args, **kwargs)

    return reported

"""Computes each figure of a trace only once while a summary needs it many times.

    @once
    def launch_time_ns(trace: Trace) -> Column: ...

    with each_once():
        summarize(trace)    # for each of 256 ranks, but launch_time_ns runs once

Nothing is kept outside of `each_once`, so a trace may be changed between two summaries. The kept columns are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from traces.model.trace import Trace

P = ParamSpec("P")
R = TypeVar("R")

# by function, trace and other arguments: the trace, which keeps its id in use, and the result
_KEPT: ContextVar[dict[tuple[Any, ...], tuple[Trace, Any]] | None] = ContextVar("_KEPT", default=None)


@contextmanager
def each_once(*, anew: bool = False) -> Iterator[None]:
    """Keep the results of functions with `once` until the outermost block ends, or until this block ends with `anew`."""
    if _KEPT.get() is not None and not anew:
        yield
        return
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def once(compute: Callable[Concatenate[Trace, P], R]) -> Callable[Concatenate[Trace, P], R]:
    """Make a function of a trace that runs once per `each_once` block, trace and arguments."""

    @wraps(compute)
    def kept(trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> R:
        results = _KEPT.get()
        if results is None:
            return compute(trace, *args, **kwargs)
        key = (compute, id(trace), args, tuple(kwargs.items()))
        if key not in results:
            results[key] = trace, _read_only(compute(trace, *args, **kwargs))
        result: R = results[key][1]
        return result

    return kept


def _read_only(result: Any) -> Any:
    if not isinstance(result, np.ndarray):
        return result
    view = result.view()  # `result` may be a column of the trace
    view.flags.writeable = False
    return view

"""Caches the results of functions that take a trace as argument.

    @cached_result
    def launch_time_ns(trace: Trace) -> Column: ...

    @result_cache()
    def summarize(trace: Trace) -> Summary: ...     # even if called for 256 ranks, launch_time_ns runs only once

Cached arrays are read-only.
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

# The cache keeps a reference to the trace, because Python may give the `id` of a freed trace to another object.
_KEPT: ContextVar[dict[tuple[Any, ...], tuple[Trace, Any]] | None] = ContextVar("_KEPT", default=None)


@contextmanager
def result_cache(*, fresh: bool = False) -> Iterator[None]:
    if _KEPT.get() is not None and not fresh:
        yield
        return
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def cached_result(compute: Callable[Concatenate[Trace, P], R]) -> Callable[Concatenate[Trace, P], R]:
    """Cache the results of a function inside `with result_cache()`."""

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
    view = result.view()  # the original array stays writeable, because it may be a column of the trace
    view.flags.writeable = False
    return view

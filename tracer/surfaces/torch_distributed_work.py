"""Wraps torch.distributed.Work and torch.futures.Future, to record when the script waits for an asynchronous collective.

    works.watch([dist.all_reduce(gradient, async_op=True)], pending)
    work.wait()         # records events on the waiting stream before and after the wait

Only the first wait for a collective is recorded. `Work` objects keep tensors in memory, so the recorder stores only weak
references to these objects.

Note [Names of code]
    When a Python override of a Work method calls the base class, pybind11 must not call the override again. pybind11 recognizes
    this case by the name of the running Python code, so the wrapper's code has the name of the method.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from tracer.state import recorder, started
from tracer.writing.collectives import PendingCollective
from traces.script.patching import patch, patch_around

_WAITS = ("wait", "synchronize", "block_current_stream")


class _WaitHandle:
    def __init__(self, pending: PendingCollective) -> None:
        self.pending = pending
        self.is_used = False
        self.handles = 0  # number of existing Work objects and futures for which a script can wait

    def drop(self) -> None:
        self.handles -= 1
        if not self.handles and not self.is_used and (to := started()) is not None:
            to.communication.give_up_call(self.pending)


class Works:
    """Compares Work objects by identity, because their classes may define `__eq__`."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._handles: dict[int, tuple[weakref.ref[Any], _WaitHandle]] = {}
        self._patched: set[type] = set()
        work, future = torch.distributed.Work, torch._C.Future
        self._patch_waits(work)
        patch_around(work, get_future=self._get_future)
        patch(future, wait=self._waiting(future.wait))

    def watch(self, works: Sequence[Any], pending: PendingCollective) -> None:
        for work in works:
            for cls in type(work).__mro__:
                if cls not in self._patched and issubclass(cls, self._torch.distributed.Work):
                    self._patch_waits(cls)
            self._handle(work, _WaitHandle(pending))

    def _handle(self, waitable: Any, handle: _WaitHandle) -> None:
        key = id(waitable)

        def gone(_: object) -> None:
            self._handles.pop(key, None)
            handle.drop()

        handle.handles += 1
        self._handles[key] = weakref.ref(waitable, gone), handle

    def _handle_of(self, waitable: Any) -> _WaitHandle | None:
        found = self._handles.get(id(waitable))
        return found[1] if found is not None and found[0]() is waitable else None

    def _patch_waits(self, cls: Any) -> None:
        self._patched.add(cls)
        patch(cls, **{name: self._waiting(vars(cls)[name]) for name in _WAITS if name in vars(cls)})

    def _waiting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def waiting(waitable: Any, *args: Any, **kwargs: Any) -> Any:
            handle, to = self._handle_of(waitable) if self._handles else None, recorder()
            if handle is None or handle.is_used or to is None:
                return call(waitable, *args, **kwargs)
            stream = self._torch.cuda.current_stream(handle.pending.begin.device)
            before = to.communication.event_on(stream)
            result = call(waitable, *args, **kwargs)
            if not handle.is_used:
                handle.is_used = True
                to.communication.waited_for(handle.pending, before, stream)
            return result

        code: Any = waiting
        code.__code__ = code.__code__.replace(co_name=call.__name__)  # see Note [Names of code]
        return waiting

    def _get_future(self, call: Callable[..., Any], work: Any) -> Any:
        future = call(work)
        handle = self._handle_of(work) if self._handles else None
        if handle is not None and not handle.is_used:
            self._handle(future, handle)
        return future

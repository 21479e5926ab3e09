# mypy: allow-untyped-calls
"""Implements the futures of collectives. `future.wait()` makes the current CUDA stream wait for the collective.

    future = work.get_future()                      # done at once, like NCCL's future
    halved = future.then(lambda done: done.value()[0] / 2)
    halved.wait()                                   # later work on the current stream starts after the division

`future.then(callback)` calls the callback immediately. The callback's GPU work runs on a separate CUDA stream, as in PyTorch
(`ivalue::Future::invokeCallback`).

Note [Futures in the backward pass]
    At the end of the backward pass, a callback of DistributedDataParallel's Reducer reads the values of futures in C++. The
    autograd engine runs these callbacks in queue order, so each future queues a callback that makes the current stream wait.
    With `static_graph`, the Reducer starts and reads all futures in one callback (`_delay_all_reduce`) of the first step.
    During that callback, the current stream waits for each future as soon as the future is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.autograd import Variable

from replayer.state import STATE
from replayer.torch_types import TorchAny
from traces.model.trace import NONE

_Future: TorchAny = torch.futures.Future


class WorkFuture(_Future):  # type: ignore[misc]

    def __init__(self, device: int, finish: Callable[[], object], join: Callable[[], object]) -> None:
        super().__init__()
        self._device, self._finish, self._join = device, finish, join

    @classmethod
    def of(cls, value: TorchAny, device: int, finish: Callable[[], object], join: Callable[[], object]) -> WorkFuture:
        made = cls(device, finish, join)
        made.set_result(value)
        made._join_before_reducer_reads()
        if STATE.futures_of_hook is not None:
            STATE.futures_of_hook.append(made)
        return made

    def join(self) -> None:
        self._join()

    def wait(self) -> TorchAny:
        self._join()
        return super().wait()

    def value(self) -> TorchAny:
        self._finish()
        return super().value()

    def then(self, callback: Callable[[TorchAny], TorchAny]) -> WorkFuture:
        if self._device == NONE:
            self._join()
            result = WorkFuture(NONE, _nothing, _nothing)
            self._complete(result, callback)
            return result
        stream, ready = torch.cuda.Stream(self._device), torch.cuda.Event()
        result = WorkFuture(self._device, _nothing, lambda: torch.cuda.current_stream(self._device).wait_event(ready))
        with torch.cuda.stream(stream):
            self._join()
            self._complete(result, callback)
            ready.record(stream)
        result._join_before_reducer_reads()
        return result

    def add_done_callback(self, callback: Callable[[TorchAny], TorchAny]) -> None:
        self.then(callback)

    def _complete(self, result: WorkFuture, callback: Callable[[TorchAny], TorchAny]) -> None:
        try:
            result.set_result(callback(self))
        except Exception as error:
            if torch._C._current_graph_task_id() >= 0:
                raise  # otherwise, the Reducer would use the error as a gradient
            result.set_exception(error)

    def _join_before_reducer_reads(self) -> None:
        # see Note [Futures in the backward pass]
        if STATE.reducer_reads_now:
            self._join()
        elif torch._C._current_graph_task_id() >= 0:
            Variable._execution_engine.queue_callback(self.join)


class ScriptFuture(WorkFuture):
    """Replaces `torch.futures.Future(devices=...)` for virtual GPUs. `wait()` also makes the current CUDA stream wait for the
    GPU work that was launched before `set_result`."""

    _devices: list[TorchAny]

    @staticmethod
    def init(init: Callable[..., None], self: TorchAny, *, devices: Iterable[TorchAny] | None = None) -> None:
        """Replace `Future.__init__`, because PyTorch's C++ code rejects virtual GPUs."""
        given = [torch.device(device) for device in devices or ()]
        of_gpus = [device for device in given if device.type == "cuda"]
        init(self, devices=[] if of_gpus else given)
        if of_gpus:
            self.__class__ = ScriptFuture
            self._device, self._finish, self._join, self._devices = of_gpus[0].index or 0, _nothing, _nothing, of_gpus

    def set_result(self, result: TorchAny) -> None:
        events = [torch.cuda.current_stream(device).record_event() for device in self._devices]

        def join() -> None:
            for device, event in zip(self._devices, events, strict=True):
                torch.cuda.current_stream(device).wait_event(event)

        self._join = join
        super().set_result(result)
        self._join_before_reducer_reads()

    def wait(self) -> TorchAny:
        super().wait()
        return super().wait()  # `_join` is known only after the future is done

    def then(self, callback: Callable[[TorchAny], TorchAny]) -> WorkFuture:
        if self.done():
            return super().then(callback)
        result: TorchAny = _Future(devices=self._devices)

        def complete(_: object) -> None:
            try:
                result.set_result(WorkFuture.then(self, callback).wait())
            except Exception as error:
                result.set_exception(error)

        _Future.add_done_callback(self, complete)
        return result  # type: ignore[no-any-return]


def _nothing() -> None:
    return None

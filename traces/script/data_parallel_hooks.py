"""Wraps the functions of nn.DataParallel, such as scatter and gather, to measure their times.

    hooks = DataParallelHooks(torch, part)      # part("scatter", 0): a context for a part on cuda:0, or None
    hooks.install()     # scatter, replicate and gather; gather_backward and broadcast_backward
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from traces.script.patching import OutermostCalls, argument, patch_around, patch_everywhere

Part = Callable[[str, int | None], AbstractContextManager[Any] | None]


class DataParallelHooks:
    """Wraps the functions of nn.DataParallel."""

    def __init__(self, torch: Any, part: Part) -> None:
        self._torch, self._part = torch, part
        self.here = OutermostCalls()

    def install(self) -> None:
        parallel = self._torch.nn.parallel
        for name, call, devices in (
            ("scatter", parallel.scatter, "target_gpus"),
            ("scatter", parallel.scatter_gather.scatter_kwargs, "target_gpus"),
            ("replicate", parallel.replicate, "devices"),
            ("gather", parallel.gather, "target_device"),
        ):
            patch_everywhere(call, self._as_part(name, call, devices))
        functions: Any = sys.modules["torch.nn.parallel._functions"]
        patch_around(functions.Gather, backward=self._backward("gather_backward"))
        patch_around(functions.Broadcast, backward=self._backward("broadcast_backward"))

    def _as_part(self, name: str, call: Callable[..., Any], devices: str) -> Callable[..., Any]:
        devices_of = argument(call, devices)
        return self.here.wrap(name, call, lambda args, kwargs: self._part(name, self.index(devices_of(args, kwargs))))

    def _backward(self, name: str) -> Callable[..., Any]:
        def as_part(call: Callable[..., Any], context: Any, *gradients: Any) -> Any:
            device = next((self.index(gradient.device) for gradient in gradients if gradient is not None), None)
            with self._part(name, device) or nullcontext():
                return call(context, *gradients)

        return as_part

    def index(self, devices: Any) -> int | None:
        device = devices[0] if isinstance(devices, list | tuple) and devices else devices
        if isinstance(device, str):
            device = self._torch.device(device)
        if isinstance(device, int):
            return device if device >= 0 else None
        return getattr(device, "index", None) if getattr(device, "type", "") == "cuda" else None

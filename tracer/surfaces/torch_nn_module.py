"""Wraps torch.nn.Module. A forward pass begins when the script calls a module directly, not through another module.

    output = model(batch)       # reported once, not for each layer
    model.cuda()                # part of the set-up: these copies are not input batches
    ranges.begin()              # the profiler now records "nn.Module: ResNet_0" and "nn.Module: Conv2d_0"
"""

from __future__ import annotations

import sys
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from tracer.state import CALLS, OPTIMIZERS, recorder
from traces.analyses.modules import ModuleNames
from traces.script.patching import PhaseScope, patch
from traces.script.script_hooks import ScriptCalls, ScriptHooks


def in_module() -> bool:
    return bool(CALLS.now.inside)


def install(torch: ModuleType) -> None:
    ScriptHooks(torch, recorder, OPTIMIZERS, CALLS).module_calls()
    cls: Any = torch.nn.Module
    patch(cls, _apply=PhaseScope("other", recorder).wrap(cls._apply))
    # for uninitialized parameters, PyTorch allows only listed methods, so add the wrapped methods to the list
    lazy: Any = torch.nn.parameter.UninitializedTensorMixin
    wrapped = [getattr(torch.Tensor, name) for name in ("to", "cuda", "cpu", "copy_")]
    patch(lazy, _allowed_methods=[*lazy._allowed_methods, *wrapped])


def as_nested_module(torch: ModuleType, call: Any) -> Any:
    calls = ScriptCalls()
    calls.now.inside = True
    return ScriptHooks(torch, recorder, OPTIMIZERS, calls).module_call(call)


class ModuleRanges:
    """Adds a profiler range, such as "nn.Module: Conv2d_0", for each module call in profiled steps. Scripts with torch.compile
    get no profiler ranges, because a changed `Module.__call__` would cause recompilations."""

    def __init__(self, torch: ModuleType) -> None:
        self._cls: Any = torch.nn.Module
        # takes a tenth of the time of `record_function`; the importer recognizes its events (cpu_op) by name
        self._range: Any = torch._C._profiler._RecordFunctionFast
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._new = ModuleNames()
        self._before: Any = None
        self._ours: Any = None

    def begin(self) -> None:
        if has_compiled():
            return
        call, in_range, names, name_of = self._cls.__call__, self._range, self._names, self._name

        @wraps(call)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            with in_range(names.get(self) or name_of(self)):
                return call(self, *args, **kwargs)

        self._before, self._ours = call, called
        patch(self._cls, __call__=called)

    def end(self) -> None:
        if self._ours is not None and self._cls.__call__ is self._ours:
            patch(self._cls, __call__=self._before)
        self._before = self._ours = None

    def _name(self, module: Any) -> str:
        name = self._names[module] = self._new.name(module)
        return name


def has_compiled() -> bool:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters and counters["frames"])

"""torch.compile under replay: the code runs eagerly, with the same results, names and checkpoints.

    model = torch.compile(model)
    model(x)                            # printed at the first call: under replay, torch.compile runs eagerly
    model.state_dict()                  # keys begin with "_orig_mod.", as compiled modules' do

Kernels are timed op by op. A module comes back as the `OptimizedModule` that torch.compile makes, with the compiler
switched off, so that what scripts do with it (`_orig_mod`, `isinstance`, saving) works; a function comes back as it is.

What asks for a graph itself (torch.export, `torch._dynamo.optimize`, `export`, `explain`) is given it, by torch's own tracer.
That one takes each Python frame entered under it for the script's, but for those of torch and of folders that it is told of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from replayer.surfaces.patching import refusal, when_imported
from traces.patching import patch

# Of a CUDA build only; torch._inductor.cudagraph_trees imports them where there is a GPU, and `torch.compiler.reset()` it.
_IMPORTED = ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled")

_ROOMS = Path(__file__).parents[2]


def install(torch_module: ModuleType) -> None:
    """Patch torch.compile; nn.Module.compile calls it."""
    told: list[str] = []

    def tell() -> None:
        if not told:
            told.append("torch.compile")
            print("trace: under replay, torch.compile runs eagerly", file=sys.stderr)

    def telling(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def told_at_first_call(*args: Any, **kwargs: Any) -> Any:
            tell()
            return call(*args, **kwargs)

        return told_at_first_call

    def compile_eagerly(model: Any = None, *, disable: bool = False, **options: Any) -> Any:
        if model is None:  # used as a decorator with options

            def decorate(decorated: Callable[..., Any]) -> Any:
                return compile_eagerly(decorated, disable=disable, **options)

            return decorate
        if disable:
            return model
        if isinstance(model, torch_module.nn.Module):
            dynamo: Any = import_module("torch._dynamo")  # takes a second, so only where a script compiles a module
            compiled = dynamo.disable(model)
            if not told:
                compiled.__dict__["forward"] = telling(compiled.__dict__["forward"])
            return compiled
        return model if told or not callable(model) else telling(model)

    compile_eagerly.__name__ = compile_eagerly.__qualname__ = "compile"
    patch(torch_module, compile=compile_eagerly)
    for name in _IMPORTED:
        if not hasattr(torch_module._C, name):
            patch(torch_module._C, **{name: refusal(f"torch._C.{name}", "nothing is compiled")})
    when_imported("torch._dynamo.trace_rules", _leave_out_our_frames)

    def warn_unless_compiled(module: Any) -> None:
        """Compiled code runs eagerly here, but is no code "called without torch.compile()"."""
        warn_once = module._warn_once

        @wraps(warn_once)
        def warn(warning_id: str, message: str, *options: Any, **named: Any) -> None:
            if not (told and "without torch.compile()" in message):
                warn_once(warning_id, message, *options, **named)

        patch(module, _warn_once=warn)

    when_imported("torch.nn.attention.flex_attention", warn_unless_compiled)


def _leave_out_our_frames(rules: Any) -> None:
    """What stands for a C function of torch (the accelerator's streams, a device) is no code to trace, as C is not."""
    rules.SKIP_DIRS.extend(f"{_ROOMS / room}/" for room in ("replayer", "traces", "tracer"))
    rules._recompile_re()

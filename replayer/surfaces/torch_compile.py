"""Patches torch.compile. Under replay, compiled code runs eagerly, with the same results, names and checkpoints.

    model = torch.compile(model)
    model(x)                            # printed at the first call: under replay, torch.compile runs eagerly
    model.state_dict()                  # keys begin with "_orig_mod.", as for compiled modules

Kernels are timed op by op. torch.compile of a module returns the usual `OptimizedModule` with the compiler switched off, so
`_orig_mod`, `isinstance` and saving work. A function is returned unchanged.

Calls that ask for a graph (torch.export, `torch._dynamo.optimize`, `export`, `explain`) get a graph from torch's own tracer.
The tracer treats every Python frame as script code, except frames of torch and of folders on its skip list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from replayer.surfaces.patching import refusal, when_imported
from replayer.torch_types import TorchAny
from traces.script.patching import around, patch, patch_around

# These functions exist only in CUDA builds. With a GPU, `torch.compiler.reset()` imports torch._inductor.cudagraph_trees, which
# imports these functions.
_IMPORTED = ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled")

_ROOMS = Path(__file__).parents[2]


def install(torch_module: ModuleType) -> None:
    told: list[str] = []

    def tell() -> None:
        if not told:
            told.append("torch.compile")
            print("trace: under replay, torch.compile runs eagerly", file=sys.stderr)

    def tell_and_call(call: Callable[..., TorchAny], /, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        tell()
        return call(*args, **kwargs)

    def compile_eagerly(model: TorchAny = None, *, disable: bool = False, **options: TorchAny) -> TorchAny:
        if model is None:

            def decorate(decorated: Callable[..., TorchAny]) -> TorchAny:
                return compile_eagerly(decorated, disable=disable, **options)

            return decorate
        if disable:
            return model
        if isinstance(model, torch_module.nn.Module):
            # Importing torch._dynamo takes a second, so this happens only if a script compiles a module.
            dynamo: TorchAny = import_module("torch._dynamo")
            compiled = dynamo.disable(model)
            if not told:
                compiled.__dict__["forward"] = around(compiled.__dict__["forward"], tell_and_call)
            return compiled
        return model if told or not callable(model) else around(model, tell_and_call)

    compile_eagerly.__name__ = compile_eagerly.__qualname__ = "compile"
    patch(torch_module, compile=compile_eagerly)
    for name in _IMPORTED:
        if not hasattr(torch_module._C, name):
            patch(torch_module._C, **{name: refusal(f"torch._C.{name}", "nothing is compiled")})
    when_imported("torch._dynamo.trace_rules", _leave_out_our_frames)

    def warn_unless_compiled(
        warn_once: Callable[..., None], warning_id: str, message: str, *options: TorchAny, **named: TorchAny
    ) -> None:
        """Suppress the warning "called without torch.compile()" for code that the script passed to torch.compile."""
        if not (told and "without torch.compile()" in message):
            warn_once(warning_id, message, *options, **named)

    attention = "torch.nn.attention.flex_attention"
    when_imported(attention, lambda module: patch_around(module, _warn_once=warn_unless_compiled))


def _leave_out_our_frames(rules: TorchAny) -> None:
    """Stop torch's tracer from tracing our Python replacements of C functions (streams, devices).

    The tracer cannot trace C functions either.
    """
    rules.SKIP_DIRS.extend(f"{_ROOMS / room}/" for room in ("replayer", "traces", "tracer"))
    rules._recompile_re()

"""Patches torch.compile. torch's own Dynamo traces compiled functions, and replayer/compiled/ replaces Inductor.

    compiled = torch.compile(model, mode="reduce-overhead")
    compiled(x)                         # traced by Dynamo and AOTAutograd, and run op by op on virtual tensors

Guards, graph breaks, recompilations and their counters, logs and errors are therefore torch's own. The backends "inductor" and
"cudagraphs" run as replayer/compiled/backend.py says, because both need a driver. All other backends run unchanged.

Dynamo treats every Python frame as script code, except frames of torch and of folders on its skip list.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

from replayer.compiled.backend import compile_graph
from replayer.surfaces.patching import refusal, when_imported
from replayer.tensor.planning.plan_keys import KEYER_FILE
from replayer.torch_types import TorchAny
from traces.script.patching import PATCHES, patch, patch_around

# These functions exist only in CUDA builds. With a GPU, `torch.compiler.reset()` imports torch._inductor.cudagraph_trees, which
# imports these functions.
_IMPORTED = ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled")

_COMPILATIONS_KEPT = 1 << 20

_ROOMS = Path(__file__).parents[2]
_OURS = tuple(f"{_ROOMS / room}/" for room in ("replayer", "traces", "tracer"))
_WITH_WRAPPERS = (
    "traces/script/patching.py", "traces/script/script_hooks.py", "replayer/surfaces/", "replayer/torch_shortcuts.py",
)  # fmt: skip
_WRAPPERS = tuple(f"{_ROOMS / place}" for place in _WITH_WRAPPERS)


def install(torch_module: ModuleType) -> None:
    wrapper: TorchAny = torch_module._TorchCompileInductorWrapper

    def compile_with_mode(self: TorchAny, model: TorchAny, inputs: TorchAny, *, config_patches: TorchAny = None) -> TorchAny:
        return compile_graph(model, inputs, config_patches={**self.config, **(config_patches or {})})

    def get_compiler_config(self: TorchAny) -> TorchAny:
        """Return the same as torch, but without importing Inductor's passes, which takes half a second."""
        config: TorchAny = import_module("torch._inductor.config")
        with config.patch(self.config):
            return config.get_config_copy()

    patch(wrapper, __call__=compile_with_mode, get_compiler_config=get_compiler_config)
    # Without this call, torch forgets all but the last 64 compilations.
    when_imported("torch._dynamo.utils", lambda utils: utils.set_compilation_metrics_limit(_COMPILATIONS_KEPT))
    when_imported("torch._dynamo.backends.inductor", lambda module: patch(module, inductor=compile_graph))
    when_imported("torch._inductor.compile_fx", lambda module: patch(module, compile_fx=compile_graph))
    for name in _IMPORTED:
        if not hasattr(torch_module._C, name):
            patch(torch_module._C, **{name: refusal(f"torch._C.{name}", "nothing is compiled")})
    when_imported("torch._dynamo.trace_rules", _leave_out_our_frames)
    when_imported("torch._dynamo.convert_frame", _leave_out_frames_below_ours)
    when_imported("torch._dynamo.variables.functions", _trace_originals)


def _leave_out_our_frames(rules: TorchAny) -> None:
    """Stop torch's tracer from tracing our Python replacements of C functions (streams, devices).

    The tracer cannot trace C functions either.
    """
    rules.SKIP_DIRS.extend(_OURS)
    rules._recompile_re()
    PATCHES.on_undo(lambda: _trace_our_frames(rules))

    def lookup_original(lookup: TorchAny, function: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        return lookup(_original_of(function), *args, **kwargs)

    patch_around(rules, lookup_inner=lookup_original)


def _trace_our_frames(rules: TorchAny) -> None:
    rules.SKIP_DIRS[:] = [folder for folder in rules.SKIP_DIRS if folder not in _OURS]
    rules._recompile_re()


def _trace_originals(variables: TorchAny) -> None:
    """Make torch's tracer trace the original functions where the replayer has put wrappers around them."""

    def traced(create: TorchAny, self: TorchAny, fn: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> None:
        create(self, _original_of(fn), *args, **kwargs)

    patch_around(variables.UserFunctionVariable, __init__=traced)


def _original_of(function: TorchAny) -> TorchAny:
    return getattr(function, "stands_for", function) if isinstance(function, FunctionType) else function


def _leave_out_frames_below_ours(convert_frame: TorchAny) -> None:
    """Stop torch's tracer from tracing functions of other modules that the replayer's own code calls.

    Wrappers of the script's functions are an exception, because the functions that they call may belong to the script.
    """
    types: TorchAny = import_module("torch._dynamo.types")
    nowhere = types.FrameExecStrategy(types.FrameAction.SKIP, types.FrameAction.SKIP)

    def convert(call: TorchAny, self: TorchAny, frame: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        file = frame.f_code.co_filename
        if file == KEYER_FILE or (file.startswith(_OURS) and not file.startswith(_WRAPPERS)):
            return types.ConvertFrameReturn(frame_exec_strategy=nowhere)
        return call(self, frame, *args, **kwargs)

    patch_around(convert_frame.CatchErrorsWrapper, __call__=convert)

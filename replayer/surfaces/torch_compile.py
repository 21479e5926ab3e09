"""Patches torch.compile to replace the backends "inductor" and "cudagraphs".

    compiled = torch.compile(model, mode="reduce-overhead")
    compiled(x)                         # traced by Dynamo and AOTAutograd, and run op by op on virtual tensors
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from types import ModuleType

from replayer.compiled.backend import compile_graph, report_eager
from replayer.surfaces.patching import refusal
from replayer.tensor.generators import BaseGenerator, Generator
from replayer.tensor.planning.plan_keys import KEYER_FILE
from replayer.tensor.values.cuda_only_ops import conv_format
from replayer.torch_types import TorchAny
from traces.script.compiled_functions import see_through_wrappers
from traces.script.patching import patch, patch_around, when_imported

# missing in CPU builds of PyTorch
_IMPORTED = ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled")


def install(torch_module: ModuleType) -> None:
    wrapper: TorchAny = torch_module._TorchCompileInductorWrapper

    def compile_here(_: TorchAny, model: TorchAny, inputs: TorchAny, **_options: TorchAny) -> TorchAny:
        return compile_graph(model, inputs)

    def get_compiler_config(self: TorchAny) -> TorchAny:
        config: TorchAny = import_module("torch._inductor.config")
        with config.patch(self.config):
            return config.get_config_copy()

    patch(wrapper, __call__=compile_here, get_compiler_config=get_compiler_config)
    when_imported("torch._dynamo.backends.inductor", lambda module: patch(module, inductor=compile_graph))
    when_imported("torch._dynamo.backends.cudagraphs", lambda module: patch(module.CudagraphsBackend, __call__=compile_here))
    when_imported("torch._inductor.compile_fx", lambda module: patch(module, compile_fx=compile_graph))
    decided = torch_module._C._conv_determine_backend_memory_format

    def memory_format(data: TorchAny, weight: TorchAny, kind: TorchAny) -> TorchAny:
        return conv_format(data, weight) if data.device.type == "cuda" else decided(data, weight, kind)

    patch(torch_module._C, _conv_determine_backend_memory_format=memory_format)
    aot_compile = refusal("torch._inductor.aot_compile", "use torch.compile")
    when_imported("torch._inductor", lambda module: patch(module, aot_compile=aot_compile))
    of_function = refusal("torch.compile(...).aot_compile", "call the compiled function")
    when_imported("torch._dynamo.aot_compile", lambda module: patch(module, aot_compile_fullgraph=of_function))
    for name in _IMPORTED:
        if not hasattr(torch_module._C, name):
            patch(torch_module._C, **{name: refusal(f"torch._C.{name}", "nothing is compiled")})
    see_through_wrappers((KEYER_FILE,), report_eager)
    when_imported("torch._dynamo.variables.script_object", _break_graphs_at_generators)
    check: TorchAny = type(BaseGenerator).__instancecheck__
    if hasattr(check, "__code__"):  # PyTorch's C++ code calls this function for a virtual generator, but not for a real one
        when_imported("torch._dynamo.eval_frame", lambda module: module.skip_code(check.__code__))
    parameter: TorchAny = torch_module.nn.Parameter
    example = parameter(torch_module.empty(0))

    def has_static_shape(decided: TorchAny, tensor: TorchAny, *args: TorchAny, **options: TorchAny) -> TorchAny:
        # torch.compile compares the tensor's class with nn.Parameter, but a virtual parameter has another class.
        return decided(example if tensor.__class__ is parameter else tensor, *args, **options)

    patches = {"tensor_always_has_static_shape": has_static_shape}
    when_imported("torch._dynamo.variables.builder", lambda module: patch_around(module, **patches))


def _break_graphs_at_generators(variables: TorchAny) -> None:
    """Exclude virtual random generators from graphs of torch.compile, which supports only `torch._C.Generator`."""

    def matches(matching: TorchAny, kind: type) -> bool:
        return not issubclass(kind, Generator) and bool(matching(kind))

    # the first class exists before PyTorch 2.14, and the second class since PyTorch 2.14
    for name in ("TorchScriptObjectVariable", "CustomClassObjectVariable"):
        if (kind := getattr(variables, name, None)) is not None and hasattr(kind, "is_matching_cls"):
            patch(kind, is_matching_cls=staticmethod(partial(matches, kind.is_matching_cls)))

"""Patches torch.jit so that scripts can trace, save, load and print modules with virtual tensors.

    torch.jit.trace(model, torch.ones(1, 3, 32, 32, device="cuda"))

Note [Executor of TorchScript]
    TorchScript's older executor fuses ops by device and fails for the device "lazy". Scripts select it with
    `torch._C._jit_set_profiling_executor(False)`. The virtual GPU keeps the newer executor, which computes the same values.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from replayer.compiled.torchscript import as_in_pytorch, compiling, in_unit, printed_as_in_pytorch, show_all_as_in_pytorch
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import BACKEND, errors_of_cuda
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import PATCHES, patch, patch_around

_DEVICES = "virtual_gpu_devices"  # a file in the archive that lists each tensor's GPU, because the archive contains CPU tensors


def install(torch_module: ModuleType) -> None:
    c, aten, flags = torch_module._C, torch_module.ops.aten, torch_module.backends.cudnn
    tracer = c._dispatch_key_parse("Tracer")
    outer, inner = aten.convolution.default, aten._convolution.default
    VirtualTensor.plan_cache.composites[inner] = lambda *args: outer(*args[:9])

    def traced(trace: TorchFunction, /, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        dispatch: TorchAny = VirtualTensor.__torch_dispatch__

        def noted(func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None) -> TorchAny:
            if func is inner:
                func, args = outer, args[:9]
            elif func is outer and c._get_tracing_state() is not None:
                excluded = c._dispatch_tls_local_exclude_set().remove(tracer)
                with c._ForceDispatchKeyGuard(c._dispatch_tls_local_include_set(), excluded):
                    return inner(*args, flags.benchmark, flags.deterministic, flags.enabled, flags.allow_tf32)
            return dispatch(func, types, args, kwargs)

        VirtualTensor.__torch_dispatch__ = staticmethod(noted)
        try:
            with errors_of_cuda():
                return trace(*args, **kwargs)
        finally:
            VirtualTensor.__torch_dispatch__ = staticmethod(dispatch)

    for owner in (c, c.ScriptModule):
        for name in vars(owner):
            if re.fullmatch("_create_(function|method|graph)_(from|by)_trac(e|ing)(_with_dict)?", name):
                patch_around(owner, **{name: traced})
    for cls in (torch_module.jit.RecursiveScriptModule, torch_module.jit._trace.TopLevelTracedModule, c.ScriptFunction):
        patch_around(cls, save=_from_host, save_to_buffer=_from_host)
    patch_around(torch_module.jit, load=_by_host)
    compilers = "_jit_script_compile", "_jit_script_compile_overload", "_jit_script_class_compile"
    patch_around(c, **dict.fromkeys(compilers, compiling))
    patch_around(c.ConcreteModuleType, _create_methods_and_properties=compiling, _create_hooks=compiling)
    patch_around(c.ScriptModule, _define=compiling)
    patch_around(c, _export_opnames=_op_names)
    loaders = "import_ir_module", "import_ir_module_from_buffer", "_import_ir_module_from_package"
    patch_around(c, **dict.fromkeys(loaders, in_unit))
    patch_around(c.CompilationUnit, __init__=_compile_text, define=in_unit)
    PATCHES.on_undo(show_all_as_in_pytorch)
    for printed in (c.Graph, c.Node, c.Value):
        patch(printed, __str__=_named(printed.__str__), __repr__=_named(printed.__repr__))
    for compiled in (c.ScriptFunction, c.ScriptMethod):
        patch(compiled, code=property(_named(compiled.code.__get__)))
    _keep_executor(c)


def _op_names(op_names: TorchFunction, module: TorchAny) -> list[str]:
    """Return the names of the ops that a TorchScript module calls. As in PyTorch, the list does not contain ops that read a
    device."""
    names = {printed_as_in_pytorch(name) for name in op_names(module)}
    return sorted(names - {"prim::device", "prim::is_cuda"})


def _keep_executor(c: TorchAny) -> None:
    """See Note [Executor of TorchScript]."""
    set_executor = c._jit_set_profiling_executor
    chosen = set_executor(True)

    def choose(profiling: bool) -> bool:
        nonlocal chosen
        before, chosen = chosen, profiling
        return bool(before)

    patch(c, _jit_set_profiling_executor=choose)
    PATCHES.on_undo(lambda: set_executor(chosen))


def _from_host(save: TorchFunction, module: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    on_gpu = [(place, tensor, put) for place, tensor, put in _places(module) if tensor.is_cuda]
    if on_gpu:
        devices = json.dumps({place: str(tensor.device) for place, tensor, _ in on_gpu})
        kwargs["_extra_files"] = {**(kwargs.get("_extra_files") or {}), _DEVICES: devices}
    try:
        on_host = {tensor: _moved(tensor, "cpu") for _, tensor, _ in on_gpu}  # tied parameters remain one tensor
        for _, tensor, put in on_gpu:
            put(on_host[tensor])
        with as_in_pytorch(_graphs(module)):
            return save(module, *args, **kwargs)
    finally:
        for _, tensor, put in on_gpu:
            put(tensor)


def _by_host(
    load: TorchFunction, f: TorchAny, map_location: TorchAny = None, _extra_files: TorchAny = None, **kwargs: TorchAny
) -> TorchAny:
    extra_files = {} if _extra_files is None else _extra_files
    files = {**extra_files, _DEVICES: ""}
    to_gpu = map_location is not None and torch.device(map_location).type == "cuda"
    f = f if isinstance(f, (str, os.PathLike)) else io.BytesIO(f.read())
    module = load(f, "cpu" if to_gpu else map_location, files, **kwargs)
    devices = json.loads(files.pop(_DEVICES) or "{}") if map_location is None else {}
    extra_files.update(files)
    if of_cuda := {place: tensor.device for place, tensor, _ in _places(module) if tensor.is_cuda}:
        # PyTorch's CUDA build saved this file. PyTorch's CPU build can read the tensors' devices, but not their values.
        if isinstance(f, io.BytesIO):
            f.seek(0)
        module, devices = load(f, "cpu", **kwargs), of_cuda
    moved: dict[torch.Tensor, torch.Tensor] = {}
    for place, tensor, put in _places(module):
        device = map_location if to_gpu else devices.get(place)
        if device is not None:
            if tensor not in moved:
                moved[tensor] = _moved(tensor, device)
            put(moved[tensor])
    return module


def _compile_text(compile_: TorchFunction, unit: TorchAny, lang: str = "", _frames_up: int = 0) -> None:
    ours = 3  # PyTorch looks up names in the frame of its caller, and the replayer adds three frames
    in_unit(compile_, unit, lang, _frames_up + ours)


def _moved(tensor: torch.Tensor, device: TorchAny) -> torch.Tensor:
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


def _places(module: TorchAny) -> Iterator[tuple[str, torch.Tensor, Callable[[torch.Tensor], None]]]:
    """Yield each tensor of a module with a name, and with a function that replaces the tensor."""
    types: TorchAny = torch._C.ConcreteModuleType
    for path, part in module.named_modules() if isinstance(module, torch.nn.Module) else ():
        for name in types.from_jit_type(part._c._type()).get_attributes():
            leaves, structure = tree_flatten(part._c.getattr(name))
            for at, leaf in enumerate(leaves):
                if isinstance(leaf, torch.Tensor):
                    yield f"{path}.{name}.{at}", leaf, partial(_put, part._c, name, leaves, at, structure)
    for number, node in enumerate(_constants(module)):
        yield str(number), node.t("value"), partial(node.t_, "value")


def _put(part: TorchAny, name: str, leaves: list[TorchAny], at: int, structure: TreeSpec, tensor: torch.Tensor) -> None:
    leaves[at] = tensor
    part.setattr(name, tree_unflatten(leaves, structure))


def _graphs(module: TorchAny) -> list[TorchAny]:
    if isinstance(module, torch.jit.ScriptFunction):
        return [module.graph]
    parts = [part._c for part in module.modules()]
    return [part._get_method(name).graph for part in parts for name in part._method_names()]


def _constants(module: TorchAny) -> list[TorchAny]:
    nodes = [node for graph in _graphs(module) for node in graph.findAllNodes("prim::Constant")]
    return [node for node in nodes if node.hasAttribute("value") and node.kindOf("value") == "t"]


def _named(text: Callable[[TorchAny], str]) -> Callable[[TorchAny], str]:
    return lambda printed: printed_as_in_pytorch(text(printed)).replace(f"device={BACKEND}:", "device=cuda:")

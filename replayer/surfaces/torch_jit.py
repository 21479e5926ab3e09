"""Patches torch.jit so that scripts can trace, save, load and print modules with virtual tensors.

    torch.jit.trace(model, torch.ones(1, 3, 32, 32, device="cuda"))
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

import torch

from replayer.errors import NotEmulated
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import BACKEND, in_words_of_cuda
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch, patch_around


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
            return trace(*args, **kwargs)
        except RuntimeError as error:
            raise in_words_of_cuda(error) from None
        finally:
            VirtualTensor.__torch_dispatch__ = staticmethod(dispatch)

    for owner in (c, c.ScriptModule):
        for name in vars(owner):
            if re.fullmatch("_create_(function|method|graph)_(from|by)_trac(e|ing)(_with_dict)?", name):
                patch_around(owner, **{name: traced})
    for cls in (torch_module.jit.RecursiveScriptModule, torch_module.jit._trace.TopLevelTracedModule):
        patch_around(cls, save=_from_host, save_to_buffer=_from_host)
    patch_around(torch_module.jit, load=_by_host)
    for printed in (c.Graph, c.Node, c.Value):
        patch(printed, __str__=_named(printed.__str__), __repr__=_named(printed.__repr__))


def _from_host(save: TorchFunction, module: torch.nn.Module, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    held = [(node, node.t("value")) for node in _constants(module)]
    constants = [(node, tensor) for node, tensor in held if tensor.is_cuda]
    devices = {tensor.device for tensor in (*module.parameters(), *module.buffers()) if tensor.is_cuda}
    if len(devices) > 1:
        raise NotEmulated("torch.jit.save of a module on several GPUs", "save `module.cpu()` instead")
    if devices:
        module.cpu()
    for node, tensor in constants:
        node.t_("value", tensor.cpu())
    try:
        return save(module, *args, **kwargs)
    finally:
        for node, tensor in constants:
            node.t_("value", tensor)
        for device in devices:
            module.to(device)


def _by_host(load: TorchFunction, f: TorchAny, map_location: TorchAny = None, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    if map_location is None or torch.device(map_location).type != "cuda":
        return load(f, map_location, *args, **kwargs)
    module = load(f, "cpu", *args, **kwargs).to(map_location)
    for node in _constants(module):
        node.t_("value", node.t("value").to(map_location))
    return module


def _constants(module: TorchAny) -> list[TorchAny]:
    parts = [part._c for part in module.modules()]
    graphs = [part._get_method(name).graph for part in parts for name in part._method_names()]
    nodes = [node for graph in graphs for node in graph.findAllNodes("prim::Constant")]
    return [node for node in nodes if node.hasAttribute("value") and node.kindOf("value") == "t"]


def _named(text: Callable[[TorchAny], str]) -> Callable[[TorchAny], str]:
    return lambda printed: text(printed).replace(f"device={BACKEND}:", "device=cuda:")

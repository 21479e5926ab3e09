"""Detects backward passes and inference mode.

The backward pass runs in the calling thread (Engine::ready_queue in torch/csrc/autograd/engine.cpp).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from replayer.errors import NotEmulated
from replayer.state import STATE, computing, script_steps, started
from replayer.tensor.node_numbers import ACCUMULATES
from replayer.tensor.tensor import VirtualTensor, replace_saved_parameters
from replayer.tensor.tensor_meta import BACKEND, errors_of_cuda
from replayer.timing.stream import VirtualStream
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import around, patch, patch_around, patch_everywhere
from traces.script.script_hooks import ScriptHooks


def install(torch_module: ModuleType) -> None:
    run = torch_module.autograd.graph._engine_run_backward
    patch_everywhere(run, around(run, _run_backward))
    ScriptHooks(torch_module, script_steps, STATE.optimizers).backward()
    patch_around(torch_module.autograd.function.BackwardCFunction, apply=_checked_gradients)
    guard = torch_module._C._InferenceMode

    def inference_mode(mode: bool) -> object:
        STATE.inference_mode_used = True
        return guard(mode)

    patch(torch_module._C, _InferenceMode=inference_mode)
    for name in ("gradcheck", "gradgradcheck"):
        check = getattr(torch_module.autograd, name)
        patch_everywhere(check, around(check, _check_numbers))


def _run_backward(run: TorchFunction, outputs: TorchAny, gradients: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    for at, (output, gradient) in enumerate(zip(outputs, gradients, strict=False)):
        is_tensor = isinstance(output, torch.Tensor) and gradient is not None  # an output may also be a GradientEdge
        if is_tensor and gradient.dim() and gradient.device != output.device:
            raise RuntimeError(f"invalid gradient at index {at} - expected device {output.device} but got {gradient.device}")
    replace_saved_parameters(lambda: _graph(_roots(outputs))[0])
    with errors_of_cuda(), _on_forward_streams(outputs):
        return run(outputs, gradients, *args, **kwargs)


@contextmanager
def _on_forward_streams(outputs: TorchAny) -> Iterator[None]:
    here = started()
    if here is None:
        yield
        return
    current, streams = here.current, here.streams
    caller = current.stream(current.device())
    stream_of = current.nodes.of_backward(caller)
    if stream_of is None:
        yield
        return

    def switch(to: VirtualStream, after: Iterable[VirtualStream]) -> None:
        for before in after:
            if before is not to:
                streams.wait_stream(to, before)
        if to is not caller:
            current.set_stream(to)

    nodes, consumers = _graph(_roots(outputs))
    numbers = {node: int(node._sequence_nr()) for node in nodes}
    first_use = {node: min(numbers[parent] for parent in parents) for node, parents in consumers.items()}
    chosen = {node: stream_of(first_use.get(node, 0) if number == ACCUMULATES else number) for node, number in numbers.items()}
    hooks = []
    for node, stream in chosen.items():
        after = [*dict.fromkeys(chosen[parent] for parent in consumers.get(node, ()))] or [caller]
        if stream is not caller or after != [caller]:
            hooks.append(node.register_prehook(lambda _, to=stream, after=after: switch(to, after)))
        if stream is not caller:
            hooks.append(node.register_hook(lambda *_: current.set_stream(caller)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for stream in dict.fromkeys(chosen[node] for node in nodes if numbers[node] == ACCUMULATES):
        if stream is not caller:
            streams.wait_stream(caller, stream)


def _roots(outputs: TorchAny) -> list[TorchAny]:
    return [output.grad_fn for output in outputs if getattr(output, "grad_fn", None) is not None]


def _graph(roots: list[TorchAny]) -> tuple[list[TorchAny], dict[TorchAny, list[TorchAny]]]:
    nodes, consumers, remaining = dict.fromkeys(roots), defaultdict(list), list(roots)
    while remaining:
        node = remaining.pop()
        for following, _ in node.next_functions:
            if following is not None:
                consumers[following].append(node)
                if following not in nodes:
                    nodes[following] = None
                    remaining.append(following)
    return list(nodes), consumers


def _checked_gradients(call: TorchFunction, node: TorchAny, *args: TorchAny) -> TorchAny:
    returned = call(node, *args)
    gradients = returned if isinstance(returned, tuple) else (returned,)
    needing = [gradient for gradient, needs in zip(gradients, node.needs_input_grad, strict=False) if needs]
    into = [(at, *edge) for at, edge in enumerate(node.next_functions) if edge[0] is not None]
    several = (here := started()) is not None and len(here.devices) > 1
    for gradient, (at, following, number) in zip(needing, into, strict=False):
        if isinstance(gradient, torch.Tensor) and gradient.dim() and (several or gradient.is_cpu):
            device = following._input_metadata[number].device
            if device.type == BACKEND and gradient.device != torch.device("cuda", device.index):
                name = f"Function {node.name()} returned an invalid gradient at index {at}"
                raise RuntimeError(f"{name} - expected device cuda:{device.index} but got {gradient.device}")
    return returned


def _check_numbers(check: TorchFunction, func: TorchAny, inputs: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    given = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
    if not computing() and any(isinstance(each, VirtualTensor) for each in given):
        raise NotEmulated(f"torch.autograd.{check.__name__} without numbers", "use --values compute")
    return check(func, inputs, *args, **kwargs)

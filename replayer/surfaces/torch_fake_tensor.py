"""Makes gradients of fake CUDA tensors work in PyTorch builds without CUDA.

    with FakeTensorMode():
        torch.ones(3, device="cuda", requires_grad=True).sum().backward()

torch.export and DTensor infer shapes with fake tensors. See Note [Lazy] in tensor/tensor.py.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import ModuleType

from torch.utils._pytree import tree_leaves

from replayer.tensor.tensor_meta import BACKEND
from replayer.torch_types import TorchAny
from traces.script.patching import patch, patch_around, patch_item, temporarily_set


def install(torch_module: ModuleType) -> None:
    from torch._subclasses import fake_tensor

    device_op: TorchAny = torch_module.ops.prim.device.default
    fake: TorchAny = fake_tensor.FakeTensor
    dispatch = fake.__torch_dispatch__

    def device(args: TorchAny) -> TorchAny:
        here = dispatch(device_op, (), args)
        return torch_module.device(BACKEND, here.index or 0) if here.type == "cuda" else here

    def torch_dispatch(cls: type, func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None) -> TorchAny:
        return device(args) if func is device_op else dispatch(func, types, args, kwargs or {})

    new = fake.__new__

    def on_cuda(given: TorchAny) -> TorchAny:
        is_ours = isinstance(given, torch_module.device) and given.type == BACKEND
        return torch_module.device("cuda", given.index or 0) if is_ours else given

    def new_on_cuda(cls: type, *args: TorchAny, **named: TorchAny) -> TorchAny:
        return new(cls, *map(on_cuda, args), **{name: on_cuda(value) for name, value in named.items()})

    patch(fake, __torch_dispatch__=classmethod(torch_dispatch), __new__=staticmethod(new_on_cuda))
    # otherwise, torch.tensor would return a virtual tensor that is not fake
    patch(fake_tensor.FakeTensorMode, avoid_device_init=True)
    handlers: TorchAny = fake_tensor._DISPATCH_META_HANDLERS
    patch_item(handlers, device_op, device)

    def run_on_cpu(run: TorchAny, mode: TorchAny, op: TorchAny, inputs: TorchAny, *others: TorchAny) -> TorchAny:
        # PyTorch runs an op without a meta kernel to infer its shapes, and the virtual GPU has no kernels
        on_gpu = [value for value in inputs if mode.is_our_fake(value) and value.fake_device.type == "cuda"]
        with ExitStack() as stack:
            for tensor in on_gpu:
                stack.enter_context(temporarily_set(tensor, fake_device=torch_module.device("cpu")))
            outputs = run(mode, op, inputs, *others)
        for output in filter(mode.is_our_fake, tree_leaves(outputs) if on_gpu else ()):
            output.fake_device = on_gpu[0].fake_device
        return outputs

    patch_around(fake_tensor, run_fallback_kernel=run_on_cpu)
    # a fake mode with `allow_non_fake_inputs` also converts tensors on the virtual GPU
    plain = (torch_module.Tensor, torch_module.nn.Parameter)
    patch_around(fake_tensor, _check_for_subclass_arg=lambda check, x: x.__class__ not in plain and check(x))

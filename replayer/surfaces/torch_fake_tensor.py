"""Patches torch's fake tensors (torch._subclasses), which export, flex_attention and DTensor use to infer shapes under
autograd.

Python sees a fake "cuda" tensor on cuda:0. C++ reads the device of a fake tensor through `prim::device`. If C++ saw "cuda",
autograd would look up CUDA's current stream. In a PyTorch build without CUDA, this lookup ends the process. In a CUDA build, it
calls the driver. For C++, a fake tensor therefore has the device type of virtual tensors (tensor/tensor.py, Note [Lazy]).

    with FakeTensorMode():
        torch.ones(3, device="cuda", requires_grad=True).sum().backward()
"""

from __future__ import annotations

from types import ModuleType

from replayer.tensor.tensor_meta import BACKEND
from replayer.torch_types import TorchAny
from traces.script.patching import patch, patch_item


def install(torch_module: ModuleType) -> None:
    from torch._subclasses import fake_tensor

    asked: TorchAny = torch_module.ops.prim.device.default
    fake: TorchAny = fake_tensor.FakeTensor
    dispatch = fake.__torch_dispatch__

    def device(args: TorchAny) -> TorchAny:
        here = dispatch(asked, (), args)
        return torch_module.device(BACKEND, here.index or 0) if here.type == "cuda" else here

    def torch_dispatch(cls: type, func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None) -> TorchAny:
        return device(args) if func is asked else dispatch(func, types, args, kwargs or {})

    normalize = fake._normalize_fake_device

    def normalize_fake_device(given: TorchAny) -> TorchAny:
        """Also accept the internal device type of virtual tensors.

        C++ passes the internal device type when it creates tensors such as the first gradient.
        """
        return normalize(torch_module.device("cuda", given.index or 0) if given.type == BACKEND else given)

    patch(fake, __torch_dispatch__=classmethod(torch_dispatch), _normalize_fake_device=staticmethod(normalize_fake_device))
    # torch.tensor then makes a fake copy of its values first, and moves the copy; a copy of a virtual tensor would not be fake
    patch(fake_tensor.FakeTensorMode, avoid_device_init=True)
    handlers: TorchAny = fake_tensor._DISPATCH_META_HANDLERS
    patch_item(handlers, asked, device)

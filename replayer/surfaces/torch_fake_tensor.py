"""torch's fake tensors (torch._subclasses): export, flex_attention and DTensor work out shapes with them, under autograd.

To Python a fake tensor of "cuda" is on cuda:0, as ever. C++ asks by a route of its own (`prim::device`), and autograd would
then look for CUDA's streams: a build without CUDA ends the process, one with it asks the driver. So C++ is told the device
type that virtual tensors have there (tensor/tensor.py, Note [Lazy]).

    with FakeTensorMode():
        torch.ones(3, device="cuda", requires_grad=True).sum().backward()
"""

from __future__ import annotations

from types import ModuleType

from replayer.tensor.tensor_meta import BACKEND
from replayer.torch_types import TorchAny
from traces.script.patching import patch


def install(torch_module: ModuleType) -> None:
    """Answer what C++ asks of fake tensors."""
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
        """C++ makes tensors beside those it has been told of, such as the first gradient."""
        return normalize(torch_module.device("cuda", given.index or 0) if given.type == BACKEND else given)

    patch(fake, __torch_dispatch__=classmethod(torch_dispatch), _normalize_fake_device=staticmethod(normalize_fake_device))
    handlers: TorchAny = fake_tensor._DISPATCH_META_HANDLERS
    handlers[asked] = device

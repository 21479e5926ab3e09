"""Makes DTensor and other tensor subclasses report the device "cuda" if they contain virtual tensors.

    class Wrapper(torch.Tensor):
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=inner.device)

    Wrapper(torch.ones(3, device="cuda")).device    # cuda:0

See Note [Lazy] in replayer/tensor/tensor.py.
"""

from __future__ import annotations

from types import ModuleType

from replayer.tensor.device_args import backend_device
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import BACKEND
from replayer.torch_types import TorchAny
from traces.script.patching import PATCHES, patch

# position of `device` among the arguments after the class
_DEVICE = 6


def device_properties(torch_module: TorchAny) -> dict[str, property]:
    device, is_cuda = torch_module._C.TensorBase.device, torch_module._C.TensorBase.is_cuda

    def reported_device(self: TorchAny) -> TorchAny:
        kept = device.__get__(self)
        return torch_module.device("cuda", kept.index) if kept.type == BACKEND else kept

    def reported_is_cuda(self: TorchAny) -> TorchAny:
        return is_cuda.__get__(self) or device.__get__(self).type == BACKEND

    return {"device": property(reported_device), "is_cuda": property(reported_is_cuda)}


def install(torch_module: ModuleType) -> None:
    tensor: TorchAny = torch_module.Tensor
    properties = device_properties(torch_module)

    def report_cuda(cls: TorchAny) -> None:
        for name, value in properties.items():
            if not any(name in vars(base) for base in cls.__mro__[: cls.__mro__.index(tensor)]):
                PATCHES.set(cls, name, value)

    def __init_subclass__(cls: TorchAny, **options: TorchAny) -> None:
        super(tensor, cls).__init_subclass__(**options)
        report_cuda(cls)

    wrap = tensor._make_wrapper_subclass

    def _make_wrapper_subclass(cls: TorchAny, *args: TorchAny, **options: TorchAny) -> TorchAny:
        if len(args) > _DEVICE:
            args = (*args[:_DEVICE], backend_device(args[_DEVICE]), *args[_DEVICE + 1 :])
        elif options.get("device") is not None:
            options["device"] = backend_device(options["device"])
        return wrap(cls, *args, **options)

    hook: TorchAny = classmethod(__init_subclass__)  # type: ignore[arg-type]
    patch(tensor, __init_subclass__=hook, _make_wrapper_subclass=staticmethod(_make_wrapper_subclass))
    for cls in tensor.__subclasses__():
        if cls is not VirtualTensor:
            report_cuda(cls)

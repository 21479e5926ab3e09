"""Makes tensors report the device "cuda" inside torch.func transforms.

    torch.func.vmap(lambda x: x.new_zeros(3, device=x.device))(torch.ones(2, device="cuda"))
    flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (j - i))    # bmm, add, softmax, bmm
"""

from __future__ import annotations

from types import ModuleType

from replayer.surfaces.torch_tensor_subclass import device_properties
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import PATCHES, around, patch_around, patch_everywhere, when_imported

_LEVELS = ("_vmap_increment_nesting", "_grad_increment_nesting", "_jvp_increment_nesting", "_func_increment_nesting")


def install(torch_module: ModuleType) -> None:
    tensor: TorchAny = torch_module.Tensor

    def increment(call: TorchFunction, *args: TorchAny) -> TorchAny:
        if "device" not in vars(tensor):
            for name, value in device_properties(torch_module).items():
                PATCHES.set(tensor, name, value)
        return call(*args)

    for part in ("vmap", "eager_transforms"):
        when_imported(
            f"torch._functorch.{part}",
            lambda module: patch_around(module, **{name: increment for name in _LEVELS if hasattr(module, name)}),
        )
    _run_eagerly(torch_module)


def _run_eagerly(torch_module: ModuleType) -> None:
    """Run the ops inside functions such as `flex_attention` and `cond` one by one."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

    operator: TorchAny = torch_module._ops.HigherOrderOperator
    keys = torch_module._C.DispatchKey
    flat: TorchAny = torch_module._ops._to_flat_tuple
    of_cuda = {keys.Lazy: keys.CUDA, keys.AutogradLazy: keys.AutogradCUDA}

    def with_eager_form(
        dispatch: TorchAny, self: TorchAny, dispatch_key: TorchAny, /, *args: TorchAny, **kwargs: TorchAny
    ) -> TorchAny:
        dispatch_key, kernels = of_cuda.get(dispatch_key, dispatch_key), self.py_kernels
        eager = kernels.get(keys.CompositeExplicitAutograd) or kernels.get(keys.CUDA)
        is_virtual = (isinstance(arg, VirtualTensor) for arg in flat(args, kwargs))
        if dispatch_key != keys.Python or eager is None or not any(is_virtual):
            return dispatch(self, dispatch_key, *args, **kwargs)
        if _get_current_dispatch_mode() is not None:
            result = dispatch(self, dispatch_key, *args, **kwargs)
            if result is not NotImplemented:
                return result
            with _pop_mode_temporarily():  # the next mode or the tensor's class handles the operator
                return with_eager_form(dispatch, self, dispatch_key, *args, **kwargs)
        return eager(*args, **kwargs)

    patch_around(operator, dispatch=with_eager_form)
    func: TorchAny = torch_module.func

    def linearize_eagerly(_linearize: TorchAny, function: TorchAny, *primals: TorchAny) -> TorchAny:
        """Replace `linearize` by `jvp`, because `linearize` cannot trace ops on virtual tensors."""
        return function(*primals), lambda *tangents: func.jvp(function, primals, tangents)[1]

    patch_everywhere(func.linearize, around(func.linearize, linearize_eagerly))

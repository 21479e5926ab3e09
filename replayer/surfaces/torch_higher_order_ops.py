"""Runs PyTorch's higher-order operators, such as flex_attention and cond, one op at a time.

    flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (j - i))    # bmm, add, softmax, bmm

Virtual tensors use PyTorch's kernels for the dispatch key CompositeExplicitAutograd.
"""

from __future__ import annotations

from types import ModuleType

from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny
from traces.script.patching import around, patch_around, patch_everywhere


def install(torch_module: ModuleType) -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    operator: TorchAny = torch_module._ops.HigherOrderOperator
    keys = torch_module._C.DispatchKey
    flat: TorchAny = torch_module._ops._to_flat_tuple

    def with_eager_form(
        dispatch: TorchAny, self: TorchAny, dispatch_key: TorchAny, /, *args: TorchAny, **kwargs: TorchAny
    ) -> TorchAny:
        if dispatch_key == keys.Python and _get_current_dispatch_mode() is None:
            eager = self.py_kernels.get(keys.CompositeExplicitAutograd)
            if eager is not None and any(isinstance(arg, VirtualTensor) for arg in flat(args, kwargs)):
                return eager(*args, **kwargs)
        return dispatch(self, dispatch_key, *args, **kwargs)

    patch_around(operator, dispatch=with_eager_form)
    func: TorchAny = torch_module.func

    def linearize_eagerly(_linearize: TorchAny, function: TorchAny, *primals: TorchAny) -> TorchAny:
        """Compute each derivative with `jvp`, because `linearize` cannot trace ops on virtual tensors."""
        return function(*primals), lambda *tangents: func.jvp(function, primals, tangents)[1]

    patch_everywhere(func.linearize, around(func.linearize, linearize_eagerly))

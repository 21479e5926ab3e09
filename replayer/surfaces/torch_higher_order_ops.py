"""torch's higher-order operators (flex_attention, cond, scan...) on virtual tensors: their eager form, op by op.

A tensor subclass needs a rule for each of them; here one rule serves all: the kernel that PyTorch has for every backend.

    flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (j - i))    # bmm, add, softmax, bmm
"""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

from replayer.tensor.tensor import VirtualTensor
from traces.patching import patch


def install(torch_module: ModuleType) -> None:
    """Patch the dispatch of operators that take functions."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    operator: Any = torch_module._ops.HigherOrderOperator
    keys = torch_module._C.DispatchKey
    dispatch = operator.dispatch

    @wraps(dispatch)
    def with_eager_form(self: Any, dispatch_key: Any, /, *args: Any, **kwargs: Any) -> Any:
        if dispatch_key == keys.Python and _get_current_dispatch_mode() is None:
            eager = self.py_kernels.get(keys.CompositeExplicitAutograd)
            if eager is not None and any(isinstance(arg, VirtualTensor) for arg in self._get_overloaded_args(args, kwargs)):
                return eager(*args, **kwargs)
        return dispatch(self, dispatch_key, *args, **kwargs)

    patch(operator, dispatch=with_eager_form)

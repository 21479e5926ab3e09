"""torch.batch_norm on virtual tensors: straight to the op that it comes to, as CUDA goes straight to cuDNN's.

    F.batch_norm(x, mean, variance, training=True)      # aten::native_batch_norm

In C++ the composite op would make a reserved space, 10 microseconds each; `replayer.choices` registers one without for callers
in C++. Python's own way there is shorter by a trip through the dispatcher and back: a tenth of a layer's forward pass.
"""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

from replayer.ops.cuda_decompositions import batch_norm as native
from replayer.tensor.tensor import VirtualTensor
from traces.patching import patch


def install(torch_module: ModuleType) -> None:
    """Replace the function that torch.nn.functional calls."""
    batch_norm = torch_module.batch_norm

    @wraps(batch_norm)
    def straight(*args: Any, **kwargs: Any) -> Any:
        virtual = args and not kwargs and type(args[0]) is VirtualTensor
        return native(*args) if virtual else batch_norm(*args, **kwargs)

    patch(torch_module, batch_norm=straight)

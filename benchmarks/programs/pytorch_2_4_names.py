"""Adds names to PyTorch that PyTorch 2.4's tests import and that newer PyTorch releases lack. `benchmarks/suites.py` imports
this file."""

from typing import Any

from torch.autograd._functions import utils as functions
from torch.testing._internal import common_cuda, common_methods_invocations, common_mkldnn, common_nn, common_utils

_RENAMED: tuple[tuple[Any, str, Any], ...] = (
    (common_utils, "skipIfMps", common_utils.skipIfMPS),
    (common_mkldnn, "bf32_on_and_off", common_mkldnn.reduced_f32_on_and_off),
    (common_methods_invocations, "binary_ufuncs_and_refs", common_methods_invocations.binary_ufuncs),
    (common_nn, "new_module_tests", []),
    (common_cuda, "tf32_is_not_fp32", lambda: False),
    (functions, "check_onnx_broadcast", None),
)
for module, name, value in _RENAMED:
    if not hasattr(module, name):
        setattr(module, name, value)

"""Replaces slow functions of PyTorch by faster ones with the same results.

Each replacement is called a shortcut. Users can switch off shortcuts:

    TRACE_WITHOUT_SHORTCUTS=dispatch_rules,override_lookup trace replay train.py

The shortcuts:

dispatch_rules
    Skips torch's lookup of custom-op rules at each dispatch to a tensor subclass (torch._library.simple_registry). Virtual
    tensors have no such rules. This saves 0.5 µs per op.
override_lookup
    Skips torch's lookup of `__torch_function__` while an optimizer updates virtual tensors only. Virtual tensors do not define
    `__torch_function__`. PyTorch's C++ code looks up `__torch_function__` for each tensor that the optimizer updates. In a
    training step of a ResNet-50, these are some 3 000 lookups. The shortcut saves 6 % of the training step's instructions.
batch_norm
    `torch.batch_norm` called from Python calls `aten::native_batch_norm` directly. The shortcut saves a pass through the
    dispatcher, and the reserved space that C++ allocates for other backends.
compiled_keys
    Computes the cache key of an op call with an expression compiled for the op, instead of a loop over the op's schema
    (tensor/planning/plan_keys.py).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable

import torch
from torch._library import simple_registry

from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch, stands_for

VARIABLE = "TRACE_WITHOUT_SHORTCUTS"


def enabled(name: str) -> bool:
    return _GUARDS[name]() and name not in os.environ.get(VARIABLE, "").split(",")


def install(tensor_class: TorchAny) -> None:
    if enabled("dispatch_rules"):
        find = simple_registry.find_torch_dispatch_rule
        classes = {id(tensor_class), id(tensor_class.parameter_class)}

        def find_torch_dispatch_rule(op: TorchAny, torch_dispatch_class: type) -> TorchAny:
            return None if id(torch_dispatch_class) in classes else find(op, torch_dispatch_class)

        patch(simple_registry, find_torch_dispatch_rule=find_torch_dispatch_rule)
    if enabled("batch_norm"):
        composite: TorchAny = torch.batch_norm
        virtual: TorchAny = tensor_class
        native: TorchAny = torch.native_batch_norm
        is_heard, is_traced = torch._C._is_torch_function_mode_enabled, torch._C._get_tracing_state
        parameter_class = tensor_class.parameter_class

        def fits(input: TorchAny, given: tuple[TorchAny, ...], training: TorchAny) -> bool:
            meta = input.tensor_meta
            if not meta.numel or len(meta.shape) < 2 or (not training and (given[2] is None or given[3] is None)):
                return False
            for each in given:
                if each is None:
                    continue
                kind = type(each)
                if (kind is not virtual and kind is not parameter_class) or each.tensor_meta.numel != meta.shape[1]:
                    return False
            return True

        @stands_for(composite)
        def batch_norm(
            input: TorchAny, weight: TorchAny, bias: TorchAny, running_mean: TorchAny, running_var: TorchAny,
            training: TorchAny, momentum: TorchAny, eps: TorchAny,
            cudnn_enabled: TorchAny,
        ) -> TorchAny:  # fmt: skip
            given = (weight, bias, running_mean, running_var)
            if type(input) is not tensor_class or is_heard() or is_traced() or not fits(input, given, training):
                return composite(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)
            return native(input, weight, bias, running_mean, running_var, training, momentum, eps)[0]

        patch(torch, batch_norm=batch_norm)


def without_override_lookup(update: TorchFunction, tensor_class: TorchAny) -> TorchFunction:
    if not enabled("override_lookup"):
        return update
    without_overrides: TorchAny = torch._C.DisableTorchFunctionSubclass
    parameter_class = tensor_class.parameter_class
    takes_closure = update.__name__ == "step"
    # while torch.compile traces the update, its own classes need the lookup
    compiles: TorchAny = torch._C._dynamo.eval_frame.get_eval_frame_callback

    @stands_for(update)
    def shorter(self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        if (takes_closure and (args or kwargs)) or compiles():
            return update(self, *args, **kwargs)
        kinds = [kind for group in self.param_groups for kind in map(type, group["params"])]
        if kinds.count(tensor_class) + kinds.count(parameter_class) < len(kinds):
            return update(self, *args, **kwargs)
        with without_overrides():
            return update(self, *args, **kwargs)

    return shorter


def _plain_rule_lookup() -> bool:
    find = getattr(simple_registry, "find_torch_dispatch_rule", None)
    return find is not None and list(inspect.signature(find).parameters) == ["op", "torch_dispatch_class"]


def _plain_batch_norm() -> bool:
    names = [argument.name for argument in torch.ops.aten.batch_norm.default._schema.arguments]
    native = [argument.name for argument in torch.ops.aten.native_batch_norm.default._schema.arguments]
    return names == [*native, "cudnn_enabled"] and hasattr(torch._C, "_is_torch_function_mode_enabled")


_GUARDS: dict[str, Callable[[], bool]] = {
    "dispatch_rules": _plain_rule_lookup,
    "override_lookup": lambda: hasattr(torch._C, "DisableTorchFunctionSubclass"),
    "batch_norm": _plain_batch_norm,
    "compiled_keys": lambda: True,
}
NAMES = tuple(_GUARDS)

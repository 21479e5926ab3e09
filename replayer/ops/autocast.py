# mypy: allow-untyped-calls
"""Implements autocast on the virtual GPU by casting the arguments of ops.

    with torch.autocast("cuda", dtype=torch.bfloat16):
        (a @ b).dtype    # torch.bfloat16

See ATen/autocast_mode.h.
"""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from replayer.ops import kept_library, op_named
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import Op, TorchAny
from traces.script.patching import patch, patch_around

_BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
)


class _Casts(threading.local):
    def __init__(self) -> None:
        self.made: dict[tuple[int, bool], tuple[TorchAny, TorchAny]] = {}


class Autocast:
    def __init__(self) -> None:
        self._casts = _Casts()
        self.key_set = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]

    def clear_cache(self, clear: Callable[[], None]) -> None:
        clear()
        self._casts.made.clear()

    def cast(self, op: Op, dtype: torch.dtype | None, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        to = dtype or torch.get_autocast_dtype("cuda")
        with torch._C._ExcludeDispatchKeyGuard(self.key_set):
            named = {name: self._cast_one(value, to) if _is_on_device(value) else value for name, value in kwargs.items()}
            return op(*self._cast(args, to), **named)

    def in_float32_and_back(self, op: Op, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        result, first = self.cast(op, torch.float32, *args, **kwargs), args[0] if args else None
        restored = isinstance(result, torch.Tensor) and result.dtype is torch.float32
        return result.to(first.dtype) if restored and isinstance(first, torch.Tensor) and _eligible(first) else result

    def full_by_dtype(self, op: Op, at: int, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        given = kwargs.get("dtype") if len(args) <= at else args[at]
        if given is None and _eligible(args[0]):
            args, kwargs = args[:at], {**kwargs, "dtype": torch.float32}
            if not op._schema.arguments[at].kwarg_only:
                defaults = [argument.default_value for argument in op._schema.arguments[len(args) : at]]
                args = (*args, *defaults, kwargs.pop("dtype"))
        return self.without_autocast(op, *args, **kwargs)

    def widest(self, op: Op, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        is_wide = any(_eligible(value) and value.dtype is torch.float32 for value in tree_leaves((args, kwargs)))
        return self.cast(op, torch.float32 if is_wide else None, *args, **kwargs)

    def banned(self, op: Op, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        if any(map(_is_on_device, args)):
            raise RuntimeError(_BANNED)
        return self.without_autocast(op, *args, **kwargs)

    def without_autocast(self, op: Op, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        with torch._C._ExcludeDispatchKeyGuard(self.key_set):
            return op(*args, **kwargs)

    def _cast(self, values: TorchAny, dtype: torch.dtype) -> list[TorchAny]:
        cast = [
            self._cast_one(value, dtype)
            if _is_on_device(value)
            else [self._cast_one(one, dtype) if _is_on_device(one) else one for one in value]
            if type(value) is list and value and isinstance(value[0], torch.Tensor)
            else value
            for value in reversed(values)
        ]
        return cast[::-1]

    def _cast_one(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        now = tensor.dtype
        if now is dtype or not now.is_floating_point or now is torch.float64:
            return tensor
        kept = (
            now is torch.float32
            and dtype is not torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and torch.is_autocast_cache_enabled()
            and not tensor._is_view()
            and not torch._C._is_cached_tensor(tensor)  # type: ignore[attr-defined]  # of torch.compile's CUDA graphs
        )
        if not kept:
            return tensor.to(dtype)
        key = id(tensor), torch.is_grad_enabled()  # a cast that ran under `no_grad` has no gradient, so it has a separate key
        cached = self._casts.made.get(key)
        if cached is None:
            cached = self._casts.made[key] = (tensor, tensor.to(dtype))
        return cached[1]


def _is_on_device(value: TorchAny) -> bool:
    return type(value) is VirtualTensor or (isinstance(value, torch.Tensor) and value.is_cuda)


def _eligible(value: TorchAny) -> bool:
    return _is_on_device(value) and value.dtype.is_floating_point and value.dtype is not torch.float64


def _argument_index(op: Op, name: str) -> int:
    return [argument.name for argument in op._schema.arguments].index(name)


def register(plans: PlanCache) -> None:
    kept_library("_").fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = kept_library()
    ops = tomllib.loads(Path(__file__).with_name("autocast_ops.toml").read_text(encoding="utf-8"))
    autocast = Autocast()
    for kind, policy in (
        ("LOWER", lambda op: partial(autocast.cast, op, None)),
        ("FULL", lambda op: partial(autocast.cast, op, torch.float32)),
        ("FULL_BY_DTYPE", lambda op: partial(autocast.full_by_dtype, op, _argument_index(op, "dtype"))),
        ("WIDEST", lambda op: partial(autocast.widest, op)),
        ("BANNED", lambda op: partial(autocast.banned, op)),
    ):
        for name in ops[kind].split():
            if (op := op_named(name)) is not None:
                library.impl(name, policy(op), "AutocastPrivateUse1")
    for name, kernel in (("reduced", _in_reduced_precision), ("full", _in_full_precision)):
        library.impl(f"_autocast_to_{name}_precision", kernel, "AutogradLazy")
        # in inference mode, the kernels of autograd do not run
        plans.composites[op_named(f"_autocast_to_{name}_precision")] = kernel
    _cover_packages(autocast)
    patch_around(torch, clear_autocast_cache=autocast.clear_cache)


def _in_reduced_precision(
    tensor: torch.Tensor, cuda_enabled: bool, cpu_enabled: bool, cuda_dtype: torch.dtype, cpu_dtype: torch.dtype
) -> torch.Tensor:
    """TorchScript compiles a block with autocast to this op (native/AutogradComposite.cpp)."""
    return tensor.to(cuda_dtype) if cuda_enabled and tensor.dtype is torch.float32 else tensor


def _in_full_precision(tensor: torch.Tensor, cuda_enabled: bool, cpu_enabled: bool) -> torch.Tensor:
    return tensor.float() if cuda_enabled and tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _cover_packages(autocast: Autocast) -> None:
    library: TorchAny = torch.library.Library
    impl, load = library.impl, torch.ops.load_library
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    key = "AutocastPrivateUse1"

    def impl_also(self: TorchAny, op_name: TorchAny, fn: TorchAny, dispatch_key: str = "", **options: TorchAny) -> None:
        impl(self, op_name, fn, dispatch_key, **options)
        if (dispatch_key or self.dispatch_key) == "AutocastCUDA" and fn is not torch.library.fallthrough_kernel:
            impl(self, op_name, partial(autocast.without_autocast, fn), key, **options)

    def load_library(path: TorchAny) -> None:
        before = set(torch._C._dispatch_get_all_op_names())
        load(path)
        for name in sorted(set(torch._C._dispatch_get_all_op_names()) - before):
            if has_kernel(name, "AutocastCUDA"):
                namespace, _, op = name.partition("::")
                kernel = partial(autocast.in_float32_and_back, op_named(op, namespace))
                impl(kept_library(namespace), op, kernel, key)

    patch(library, impl=impl_also)
    patch(torch.ops, load_library=load_library)

"""Patches Triton. Triton kernels take time on the virtual GPU, but compute no values.

    add_kernel[(grid,)](x, y, out, n, BLOCK=1024)    # "triton::add_kernel" on the current stream, timed by a roofline
    triton.runtime.driver.active.get_current_target()

With `--values compute`, Triton's interpreter computes the values.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import torch

from replayer.errors import NotEmulated
from replayer.op_signature import OpSignature
from replayer.state import computing, gpu
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.values.known_values import payload_of
from replayer.torch_types import Args, Kwargs, TorchAny
from traces.script.patching import PATCHES, patch_around, temporarily_set, when_imported

_LAST = "triton.runtime"  # Triton imports this module last


class _TritonDriver:
    def get_current_device(self) -> int:
        return gpu().current.device()

    def get_active_torch_device(self) -> TorchAny:
        return torch.device("cuda", gpu().current.device())

    def get_device_interface(self) -> TorchAny:
        return torch.cuda

    def get_current_target(self) -> TorchAny:
        from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found, import-untyped, unused-ignore]

        major, minor = torch.cuda.get_device_capability()
        return GPUTarget("cuda", 10 * major + minor, 32)

    def __getattr__(self, name: str) -> TorchAny:
        raise NotEmulated(f"triton.runtime.driver.active.{name}", "a replay compiles no kernels; call the kernel as usual")


def install(torch_module: ModuleType) -> None:
    when_imported(_LAST, _patch)


def _patch(runtime: TorchAny) -> None:
    kernel, tuned = runtime.jit.JITFunction, runtime.autotuner.Autotuner

    def run_virtually(
        run: TorchAny, self: TorchAny, *args: TorchAny, grid: TorchAny, warmup: bool, **kwargs: TorchAny
    ) -> TorchAny:
        tensors = list(_tensors((*args, *kwargs.values())))
        if not tensors:
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        name = self.fn.__name__
        if computing() and gpu().launches.captures:
            what = f"the Triton kernel {name} in a CUDA graph under --values compute"
            raise NotEmulated(what, "use `--values recorded`, the default")
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        if not warmup:
            if computing():
                _interpret(self.fn, args, kwargs, grid)
            else:
                for tensor in tensors:
                    tensor.allocation.known = None
            gpu().launches.launch(kernel_signature("triton", name, tensors), tensors[0].tensor_meta.index)
        return None

    def run_first(tune: TorchAny, self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        if not list(_tensors((*args, *kwargs.values()))):
            return tune(self, *args, **kwargs)
        self.best_config = first = self.configs[0]
        given = {**kwargs, **first.all_kwargs()}
        if first.pre_hook is not None:
            first.pre_hook({**dict(zip(self.arg_names, args, strict=False)), **given})
        return self.fn.run(*args, **given)

    def call_interpreted(call: TorchAny, self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        return _interpreted(self.fn)(*args, **kwargs) if _INTERPRETING.active else call(self, *args, **kwargs)

    patch_around(kernel, run=run_virtually, __call__=call_interpreted)
    patch_around(tuned, run=run_first)
    driver = runtime.driver
    before = getattr(driver, "_active", None)
    driver.set_active(_TritonDriver())
    PATCHES.on_undo(lambda: driver.set_active(before))


class _Interpreting(threading.local):
    active = False


_INTERPRETING = _Interpreting()


@cache
def _interpreted(function: TorchAny) -> TorchAny:
    from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return InterpretedFunction(function)


def _interpret(function: TorchAny, args: Args, kwargs: Kwargs, grid: TorchAny) -> None:
    with temporarily_set(_INTERPRETING, active=True):
        values = {name: _on_host(value) for name, value in kwargs.items()}
        _interpreted(function).run(*map(_on_host, args), grid=grid, warmup=False, **values)


def _on_host(value: TorchAny) -> TorchAny:
    if isinstance(value, VirtualTensor):
        return payload_of(value)
    if type(value) in (list, tuple):
        return type(value)(map(_on_host, value))
    if isinstance(base := getattr(value, "base", None), VirtualTensor):
        value = copy.copy(value)
        value.base = payload_of(base)
    return value


def _tensors(values: TorchAny) -> Iterator[TorchAny]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        else:
            tensor = value if isinstance(value, VirtualTensor) else getattr(value, "base", None)
            if isinstance(tensor, VirtualTensor):
                yield tensor


def kernel_signature(library: str, name: str, tensors: list[TorchAny]) -> OpSignature:
    metas = tuple(tensor.tensor_meta for tensor in tensors)

    def made() -> OpSignature:
        recorded = any(text.startswith(name) for text in gpu().recording.trace.strings.texts)
        shapes, dtypes = tuple(meta.shape for meta in metas), tuple(meta.dtype_name for meta in metas)
        return OpSignature(f"{library}::{name}", shapes, dtypes, launches=not recorded)

    signature: OpSignature = VirtualTensor.plan_cache.signature_of((library, name, metas), made)
    return signature

# mypy: allow-untyped-calls
"""Computes all ops on the CPU for the option `--values compute`.

    x = torch.rand(4, device="cuda")
    x[x > 0.5].sum().item()     # as on the CPU with the same seed

Note [Computed twice]
    CUDA does not run ops while a CUDA graph is captured. The results of captured ops nevertheless need shapes and values. The
    CPU therefore computes captured ops, and restores all memory contents and random states after the capture. Each replay of
    the graph computes the ops again.

Note [Payloads]
    The values of virtual GPU memory are in a CPU storage, the payload (`Allocation.known`). A tensor's values are a view of the
    payload, so views of a tensor share values. If a CPU kernel resizes or replaces the storage, the virtual tensor changes,
    too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
from torch.utils._pytree import tree_leaves

from replayer.errors import NotEmulated
from replayer.op_signature import OpSignature
from replayer.ops.copies import Copies
from replayer.ops.cpu.cpu_kernels import FORMS
from replayer.ops.cpu.wider_dtypes import in_wider_dtypes, may_be_wider, on_meta
from replayer.ops.gemm import PRODUCTS, use_workspace
from replayer.ops.host_call import HostCall
from replayer.ops.host_reads import HostReads, equal_without_kernel, is_recorded, reads_an_argument, wait_for_device
from replayer.ops.known_contents import indices_on_device
from replayer.state import gpu
from replayer.tensor.allocation import allocate, assign_data, detach
from replayer.tensor.device_args import report_failed_assert
from replayer.tensor.generators import BaseGenerator, PhiloxState, host_numbers, is_random, numbers_drawn, philox_of
from replayer.tensor.planning import mixed_devices
from replayer.tensor.planning.cuda_dtypes import refusal_like
from replayer.tensor.planning.deterministic import without_alerts
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.planning.results import count_changes, counts_changes
from replayer.tensor.planning.shape_inference import launches, on_device, writes_of
from replayer.tensor.tensor_meta import LACKS_KERNEL, TensorMeta, is_mask, is_virtual, lazy_conjugation, on_one_device
from replayer.tensor.values.kernel_asserts import can_fail, failed_assert, harmless
from replayer.tensor.values.known_values import bytes_of, payload_of
from replayer.timing.cuda_graph import GraphCapture
from replayer.torch_types import Kwargs, Op, TorchAny
from traces.model.layouts import memory_layout

aten = torch.ops.aten

_BETWEEN_PROCESSES = frozenset({"c10d", "_c10d_functional", "_dtensor"})
_INDEXED = frozenset({aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default})
_LEAVE_ON_HOST = {aten._pack_padded_sequence.default: (1,)}


class ComputedCopies(Copies):
    def _carry_values(self, target: TorchAny, source: TorchAny) -> None:
        into = payload_of(target)
        now_or_at_replays(partial(into.copy_, payload_of(source)), [into], target.tensor_meta.index)

    def _to_device(self, target: TorchAny, source: torch.Tensor, non_blocking: bool) -> None:
        into, kept = payload_of(target), target.allocation.known
        super()._to_device(target, source, non_blocking)
        target.allocation.known = kept
        now_or_at_replays(partial(into.copy_, source.detach()), [into], target.tensor_meta.index)

    def _to_host_memory(self, target: torch.Tensor, values: torch.Tensor | float | int | bool, device: int) -> None:
        copy = super()._to_host_memory
        now_or_at_replays(lambda: copy(target, values, device), [target], device)


class ComputedReads(HostReads):
    def values_of(self, source: TorchAny, signature: OpSignature) -> torch.Tensor:
        meta: TensorMeta = source.tensor_meta
        gpu().values.read(signature, meta.index, meta.numel, is_recorded(signature))
        return payload_of(source)


def _as_it_is(storage: torch.UntypedStorage) -> Callable[[], TorchAny]:
    before = storage.clone()

    def undo() -> None:
        if storage.nbytes() == before.nbytes():  # an op may resize a result, and a resized result has no earlier values
            storage.copy_(before)

    return undo


def _capturing(device: int) -> GraphCapture | None:
    here = gpu()
    return here.launches.capture_of(here.current.stream(device))


def _in_capture(capture: GraphCapture, compute: Callable[[], TorchAny], written: list[torch.Tensor]) -> TorchAny:
    # see Note [Computed twice]
    for tensor in written:
        capture.put_back(tensor.untyped_storage()._cdata, partial(_as_it_is, tensor.untyped_storage()))
    return compute()


def now_or_at_replays(compute: Callable[[], object], written: list[torch.Tensor], device: int) -> None:
    """Call `compute`, which writes to the payloads `written`. If a CUDA graph is being captured, each launch of the graph will
    call `compute` again."""
    capture = _capturing(device)
    if capture is None:
        compute()
    else:
        _in_capture(capture, compute, written)
        capture.add_computation(compute)


def _request(func: Op, args: list[TorchAny], kwargs: Kwargs) -> None:
    for result in tree_leaves(on_meta(func, args, kwargs)):
        allocate(gpu(), gpu().current.device(), result.untyped_storage().nbytes())


def _waits_for_size(func: Op, args: TorchAny, kwargs: TorchAny) -> bool:
    if func is aten.index.Tensor:
        return any(map(is_mask, args[1]))
    if kwargs.get("output_size") is not None:
        return False
    if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        return True
    return reads_an_argument(func, args, kwargs)


class CpuCompute:
    def __init__(self, plans: PlanCache) -> None:
        self._plans, self._tensor_class = plans, plans.tensor_class
        self.copies = ComputedCopies(plans, ComputedReads(plans))
        own = self.copies.handlers()
        self._handlers = {op: own[op] for op in (aten.copy_.default, aten._to_copy.default, aten._local_scalar_dense.default)}
        not_computed = (aten.alias, aten._lazy_clone, aten.index_put, aten._nested_tensor_from_mask_left_aligned)
        self._handlers |= {op.default: plans.specials[op.default] for op in not_computed}
        self._handlers[aten.view.dtype] = plans.specials[aten.view.dtype]

    def dispatch(self, func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None) -> TorchAny:
        if func is aten.detach.default:
            return detach(args[0])
        handler = self._handlers.get(func)
        if handler is None and func.namespace in _BETWEEN_PROCESSES:
            handler = self._plans.specials.get(func)
        if handler is None and func not in FORMS:
            handler = self._plans.composite(func)
        if handler is not None:
            return handler(*args, **(kwargs or {}))
        if len(types) > 1 and any(each.__torch_dispatch__ is not self._tensor_class.__torch_dispatch__ for each in types):
            return NotImplemented
        if func in _INDEXED and is_virtual(args[0], self._tensor_class):
            args = (args[0], indices_on_device(args[0], args[1], self._tensor_class), *args[2:])
        return self._compute(func, args, kwargs or {})

    def _compute(self, func: Op, args: TorchAny, kwargs: TorchAny) -> TorchAny:
        run = mixed_devices.runner(func, args, kwargs)
        if run is not None:
            return run(func, args, kwargs)
        here = gpu()
        call = _PayloadCall(self._plans)
        host_args = [call.of(value) for value in args]
        host_kwargs = call.named(func, kwargs)
        index = call.device(here.current.device())
        failed = self._failed_assert(func, host_args) if can_fail(func) else None
        compute = partial(self._on_host, func, host_args, host_kwargs)
        capture = _capturing(index)
        if is_random(func):
            philox = philox_of(args, kwargs, index)
            numbers = numbers_drawn(func, args, here.devices[index].properties)
            compute = partial(self._draw_on_host, philox, numbers, func, host_args, host_kwargs)
            if capture is not None:
                philox.kept_in(capture)
        if capture is None:
            try:
                result = compute()
            except (RuntimeError, IndexError) as error:
                here.launches.raise_fault()  # the CPU kernel failed because an earlier CUDA kernel failed
                raise on_one_device(error) from None
        else:
            written = [host_args[at] if isinstance(at, int) else host_kwargs[at] for at, _ in writes_of(func, args, kwargs)]
            result = _in_capture(capture, compute, tree_leaves(written))
        if failed is not None:  # raise the error only now, because an op checks shapes and dtypes before its kernel can fail
            report_failed_assert(failed)
        if self._plans.leaves_device(kwargs):
            if reads_an_argument(func, args, kwargs):
                wait_for_device(index)
            return result
        if "device" in kwargs:
            index = on_device(kwargs["device"], index)
        call.adopt_storage_changes()
        stay = _LEAVE_ON_HOST.get(func, ())
        if isinstance(result, (list, tuple)):
            made: TorchAny = [x if i in stay else call.back(x, index) for i, x in enumerate(result)]
        else:
            made = call.back(result, index)
        if func in PRODUCTS:
            use_workspace(made)
        if capture is not None:
            capture.add_computation(partial(self._compute_again, compute, call.results_in(made)))
        if func is aten.equal.default and (answer := equal_without_kernel(*args)) is not None:
            return answer
        if counts_changes(func):
            count_changes(args[0])
        does_something = bool(call.outputs or writes_of(func, args, kwargs))
        outputs, layout = tuple(call.outputs), memory_layout(call.placed)
        signature = self._plans.signature_of(
            ("computed", func, tuple(call.seen), outputs, layout, call.option),
            lambda: call.signature(func._schema.name, outputs, launches(func, does_something)),
        )
        if here.calls_product(signature):
            here.blas.use(here.devices[index].allocator, here.current.stream(index))
        here.launches.launch(signature, index)
        if _waits_for_size(func, args, kwargs):
            wait_for_device(index)
        return made

    def _failed_assert(self, func: Op, host_args: list[TorchAny]) -> str | None:
        failed = failed_assert(func, host_args, lambda tensor: tensor)
        if failed is None:
            return None
        at, line = failed
        host_args[at] = harmless(func, host_args[at])
        return line

    def _draw_on_host(self, philox: PhiloxState, numbers: int, func: Op, args: list[TorchAny], kwargs: Kwargs) -> TorchAny:
        args = [None if isinstance(value, BaseGenerator) else value for value in args]
        kwargs = {name: None if isinstance(value, BaseGenerator) else value for name, value in kwargs.items()}
        with host_numbers(philox, numbers):
            return self._on_host(func, args, kwargs)

    def _on_host(self, func: Op, args: list[TorchAny], kwargs: Kwargs) -> TorchAny:
        clock = gpu().clock
        clock.pause()
        run = FORMS.get(func) or func
        try:
            with without_alerts(), lazy_conjugation(args):
                return run(*args, **kwargs)
        except NotImplementedError as missing:
            if may_be_wider(func, args, kwargs, missing):
                with suppress(NotImplementedError):
                    return in_wider_dtypes(func, run, args, kwargs)
            if not LACKS_KERNEL.search(str(missing)):
                raise
            refusal = refusal_like(func, args, kwargs, missing)
            if refusal is not None:
                raise refusal from None
            raise _not_computed(func, "PyTorch cannot run the op on the CPU") from missing
        except RuntimeError as error:
            if may_be_wider(func, args, kwargs, error):
                return in_wider_dtypes(func, run, args, kwargs)
            if "not implemented on the CPU" in str(error):
                raise _not_computed(func, str(error)) from error
            if "DefaultCPUAllocator" not in str(error):
                raise
            _request(func, args, kwargs)
            raise _not_computed(func, "this machine has too little memory") from error
        finally:
            clock.resume()

    def _compute_again(self, compute: Callable[[], TorchAny], results: list[torch.Tensor | None]) -> None:
        for value, into in zip(tree_leaves(compute()), results, strict=True):
            if into is not None:
                into.copy_(value)


def _not_computed(func: Op, cause: str) -> NotEmulated:
    return NotEmulated(f"{func._schema.name} under --values compute", f"{cause}; use `--values recorded`")


class _PayloadCall(HostCall):
    def adopt_storage_changes(self) -> None:
        for tensor, view in self.given:
            meta: TensorMeta = tensor.tensor_meta
            storage = view.untyped_storage()
            allocation = self.allocations.get(storage._cdata)
            now = self.plans.metas.like(view, meta.index)
            if allocation is None:
                allocation = self.allocations[storage._cdata] = self.holding(storage, meta.index)
            elif storage.nbytes() != allocation.size_bytes:
                allocation.exchange(allocate(gpu(), meta.index, storage.nbytes()))
                allocation.known = bytes_of(storage)
            if now is not meta or allocation is not tensor.allocation:
                assign_data(tensor, now, allocation)

    def results_in(self, made: TorchAny) -> list[torch.Tensor | None]:
        given = [tensor.allocation for tensor, _ in self.given]

        def is_new(leaf: TorchAny) -> bool:
            return is_virtual(leaf, self.tensor_class) and leaf.allocation not in given

        return [payload_of(leaf) if is_new(leaf) else None for leaf in tree_leaves(made)]

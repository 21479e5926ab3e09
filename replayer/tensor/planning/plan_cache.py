"""Caches the shapes of op results, because computing the shapes takes about 150 microseconds per op.

    route = plans.route(torch.ops.aten.relu.default)
    plan = route.finders[len(args)](args, kwargs)   # None if the cache has no plan yet
    plan.outcome   # New(meta, 96)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch._library import custom_ops

from replayer.gpu.shared_results import SharedResults
from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.op_signature import OpSignature
from replayer.state import computing
from replayer.tensor.plan import Constant, Plan, argument_at, packed, unpacked
from replayer.tensor.planning import mixed_devices, mixed_dtypes, plan_keys
from replayer.tensor.planning.results import plan_results, require_writable
from replayer.tensor.planning.shape_inference import OtherLayout, infer, writes_of
from replayer.tensor.tensor_meta import OURS, TensorMeta, TensorMetaTable
from replayer.torch_types import Args, Kwargs, Op, TorchAny, TorchFunction

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_OF_SCRIPTS = ("CUDA", "CompositeExplicitAutograd")
PLANS_LIMIT = 50_000  # a full cache is cleared


def _kernel_of_script(func: Op) -> TorchAny:
    """Return the Python kernel that a script registered for an op and that a GPU would run. Return None if the shape
    rule of the op is sufficient.

    If the script replaces a kernel of PyTorch, the script's kernel always runs, because its results may differ from PyTorch's.
    """
    kernels = [key for key in _OF_SCRIPTS if mixed_devices.has_kernel_of_script(func, key)]
    if not kernels:
        return None
    name = str(func._name)
    defined = custom_ops.OPDEFS.get(name)
    has_shape_rule = _has_kernel(name, "Meta") if defined is None else defined._abstract_fn is not None
    may_infer = has_shape_rule and func.namespace != "aten" and not computing()
    return None if may_infer else partial(func._op_dk, getattr(torch._C.DispatchKey, kernels[0]))


def _of_simpler_ops(func: Op, records_view: bool, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    if func._schema.is_mutable:
        require_writable([argument_at((at, -1), args, kwargs) for at, listed in writes_of(func, args, kwargs) if not listed])
    # While Python code runs an op, PyTorch excludes the dispatch key that records views in inference mode.
    excluded = records_view or not torch.is_inference_mode_enabled()
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, excluded):
        return func._op_dk(_COMPOSITE, *args, **kwargs)


class Route:
    __slots__ = ("_keyers", "_tensor_class", "finders", "func", "plans", "special")

    def __init__(self, func: Op, tensor_class: type, special: TorchAny) -> None:
        self.func = func
        self.plans: dict[plan_keys.Key, Plan] = {}
        self.special = special
        self._tensor_class = tensor_class
        self.finders: list[plan_keys.Keyer] = [partial(self._find, n) for n in range(len(func._schema.arguments) + 1)]
        self._keyers: dict[int, plan_keys.Keyer] = {}

    def _find(self, count: int, args: Args, kwargs: Kwargs) -> TorchAny:
        self.finders[count] = find = plan_keys.key_function(self.func, count, self._tensor_class, self.plans.get)
        return find(args, kwargs)

    def key(self, args: Args, kwargs: Kwargs) -> plan_keys.Key:
        keyer = self._keyers.get(len(args))
        if keyer is None:
            keyer = self._keyers[len(args)] = plan_keys.key_function(self.func, len(args), self._tensor_class)
        key: plan_keys.Key = keyer(args, kwargs)
        return key


class PlanCache:
    def __init__(self, tensor_class: type) -> None:
        self.metas = TensorMetaTable(tensor_class)
        self.routes: dict[int, Route] = {}
        self.specials: dict[Op, TorchAny] = {}
        self.composites: dict[Op, TorchAny] = {}
        self.with_kernel: set[Op] = set()
        self.signatures: dict[plan_keys.Key, OpSignature] = {}
        self.run_other_layout: TorchAny = None
        self.wrap_other_layout: TorchAny = None
        self.copies: dict[plan_keys.Key, TensorMeta] = {}
        self.tensor_class: TorchAny = tensor_class
        self.shared: SharedResults | None = None  # plans that all ranks share if one process forked the ranks
        self._count = 0

    def route(self, func: Op) -> Route:
        made = self.routes.get(id(func))
        if made is None:
            made = self.routes[id(func)] = Route(func, self.tensor_class, self.specials.get(func) or self.composite(func))
        return made

    def composite(self, func: Op) -> TorchAny:
        """Return a function that splits an op into simpler ops, or None."""
        if func in self.with_kernel:
            return None
        made = self.composites.get(func)
        if made is None and "sparse" not in func._name and _has_kernel(str(func._name), "CompositeImplicitAutograd"):
            made = partial(_of_simpler_ops, func, _has_kernel(str(func._name), "ADInplaceOrView"))
        return _kernel_of_script(func) if made is None else made

    def signature_of(self, key: plan_keys.Key, make: Callable[[], OpSignature]) -> OpSignature:
        signature = self.signatures.get(key)
        if signature is None:
            if len(self.signatures) >= PLANS_LIMIT:
                self.signatures.clear()
                self.copies.clear()
            signature = self.signatures[key] = make()
        return signature

    def clear(self) -> None:
        for route in self.routes.values():
            route.plans.clear()
        self._count = 0

    def learn(self, route: Route, args: Args, kwargs: Kwargs, gpu: VirtualGpu) -> Plan:
        """Make and store a plan for the call. Raise DataDependentShape if a shape depends on values, and NotEmulated for an
        unknown op."""
        func = route.func
        key = route.key(args, kwargs)  # compute the key first, because the op may change its arguments' metadata
        of_all = None if self.shared is None else plan_keys.key_for_ranks(func, key)
        plan = None if of_all is None else self._of_other_rank(func, *of_all, args, kwargs)
        if plan is None:
            if (run := mixed_devices.runner(func, args, kwargs)) is not None:
                return self._keep(route, key, self._running(func, run, gpu))
            try:
                plan = infer(self.metas, func, args, kwargs, gpu.current.device())
            except OtherLayout:
                return self._keep(route, key, self._running(func, self.run_other_layout, gpu))
            data = packed(plan) if of_all is not None and plan.kept and plan.device == of_all[1] else None
            if self.shared is not None and of_all is not None and data is not None:
                self.shared.add(of_all[0], data)
        overlaps = mixed_dtypes.overlaps_of(func, args, kwargs, self.tensor_class)
        plan_results(
            plan,
            func,
            gpu.workspaces_of(plan.signature),
            overlaps,
            calls_product=gpu.calls_product(plan.signature),
            adds_in_place=not gpu.machine.is_before(2, 0),
        )
        return self._keep(route, key, plan)

    def _of_other_rank(self, func: Op, key: bytes, device: int, args: Args, kwargs: Kwargs) -> Plan | None:
        found = None if self.shared is None else self.shared.find(key)
        if found is None:
            return None
        mixed_devices.require_no_internal_overlap(func, args, kwargs)  # this check may print a warning
        return unpacked(found, self.metas, device)

    def _running(self, func: Op, run: TorchFunction, gpu: VirtualGpu) -> Plan:
        plan = Plan(OpSignature(func._schema.name, (), (), launches=False), gpu.current.device(), Constant(None), (), ())
        plan.make_by(lambda gpu, caller, args, kwargs: run(func, args, kwargs))
        return plan

    def _keep(self, route: Route, key: plan_keys.Key, plan: Plan) -> Plan:
        if not plan.kept:
            return plan
        if self._count >= PLANS_LIMIT:
            self.clear()
        self._count += 1
        route.plans[key] = plan
        return plan

    def leaves_device(self, kwargs: Kwargs) -> bool:
        device = kwargs.get("device")
        return device is not None and device.type not in OURS

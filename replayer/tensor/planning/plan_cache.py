"""The plan cache: what an op does to virtual tensors is learned once and then looked up.

Shape inference by PyTorch's meta kernels costs some 150 microseconds per op; a training step repeats the same few hundred
calls. So the first call of an op with arguments of this metadata is inferred and written down as a `Plan`: each result is a
new tensor with some metadata, a view of an argument, an argument itself, or a constant.

    route = plans.route(torch.ops.aten.relu.default)
    plan = route.finders[len(args)](args, kwargs)   # None if it was not learned yet
    plan.outcome   # New(meta, 96)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch._library import custom_ops

from replayer.op_signature import OpSignature
from replayer.state import computing
from replayer.tensor.plan import Constant, Plan
from replayer.tensor.planning import plan_keys
from replayer.tensor.planning.results import complete
from replayer.tensor.planning.shape_inference import OtherLayout, infer
from replayer.tensor.tensor_meta import OURS, TensorMeta, TensorMetaTable
from replayer.torch_types import TorchAny

if TYPE_CHECKING:
    from replayer.gpu.virtual_gpu import VirtualGpu

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_OF_SCRIPTS = ("CUDA", "PrivateUse1", "CompositeExplicitAutograd")
PLANS_LIMIT = 50_000  # plans kept, of all ops together; beyond it the cache starts anew


def _key_of_script(func: torch._ops.OpOverload) -> TorchAny:
    """Of the kernel in Python that a script registered for CUDA: run, as on a GPU, where nothing tells its shapes or values."""
    name = str(func._name)
    kept = f"{func.namespace}/{name.partition('::')[2]}"  # torch.library's own note of kernels in Python
    kernels = [key for key in _OF_SCRIPTS if f"{kept}/{key}" in torch.library._impls]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    defined = custom_ops.OPDEFS.get(name)
    told = has_kernel(name, "Meta") if defined is None else defined._abstract_fn is not None
    if computing():
        told = has_kernel(name, "CPU") or has_kernel(name, "CompositeExplicitAutograd")
    return None if told or not kernels else getattr(torch._C.DispatchKey, kernels[0])


class Route:
    """One op: how to read the key of a call, and the plans made so far."""

    __slots__ = ("_keyers", "_tensor_class", "finders", "func", "plans", "special")

    def __init__(self, func: torch._ops.OpOverload, tensor_class: type, special: TorchAny) -> None:
        self.func = func
        self.plans: dict[plan_keys.Key, Plan] = {}
        self.special = special  # a handler that replaces the plan altogether (copies and reads), or None
        self._tensor_class = tensor_class
        # what finds a plan, by the number of positional arguments:
        self.finders: list[plan_keys.Keyer] = [partial(self._find, n) for n in range(len(func._schema.arguments) + 1)]
        self._keyers: dict[int, plan_keys.Keyer] = {}

    def _find(self, count: int, args: tuple[TorchAny, ...], kwargs: dict[str, TorchAny]) -> TorchAny:
        """Compile what finds the plan of a call with `count` positional arguments; used by the first such call."""
        self.finders[count] = find = plan_keys.keyer(self.func, count, self._tensor_class, self.plans.get)
        return find(args, kwargs)

    def key(self, args: tuple[TorchAny, ...], kwargs: dict[str, TorchAny]) -> plan_keys.Key:
        """Under what the plan of this call is kept."""
        keyer = self._keyers.get(len(args))
        if keyer is None:
            keyer = self._keyers[len(args)] = plan_keys.keyer(self.func, len(args), self._tensor_class)
        key: plan_keys.Key = keyer(args, kwargs)
        return key


class PlanCache:
    """All routes, and the interned metadata. `tensor_class` is what has `.meta` and `.allocation`."""

    def __init__(self, tensor_class: type) -> None:
        self.metas = TensorMetaTable(tensor_class)
        self.routes: dict[int, Route] = {}  # by id of the op, which the route keeps alive: ops hash in Python, ids in C
        self.specials: dict[torch._ops.OpOverload, TorchAny] = {}
        self.composites: dict[torch._ops.OpOverload, TorchAny] = {}  # what CUDA makes of composite ops; see `composite`
        self.with_kernel: set[torch._ops.OpOverload] = set()  # composite ops elsewhere, for which CUDA has a kernel
        self.signatures: dict[plan_keys.Key, OpSignature] = {}  # of copies and reads, which have no plan
        self.run_other_layout: TorchAny = None  # an op that makes a tensor which is not strided, and
        self.wrap_other_layout: TorchAny = None  # such a tensor of the host; both set by backend.register
        self.copies: dict[plan_keys.Key, TensorMeta] = {}  # metadata of what `Tensor.to` makes
        self.tensor_class: TorchAny = tensor_class
        self._count = 0

    def route(self, func: torch._ops.OpOverload) -> Route:
        made = self.routes.get(id(func))
        if made is None:
            made = self.routes[id(func)] = Route(func, self.tensor_class, self.specials.get(func) or self.composite(func))
        return made

    def composite(self, func: torch._ops.OpOverload) -> TorchAny:
        """What runs a composite op, or None for any other: it calls the ops that the composite one is made of.

        Above autograd PyTorch does this itself. In inference mode there is no autograd, and composite ops come as they are.
        """
        if func in self.with_kernel:
            return None
        made = self.composites.get(func)
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        if made is None and "sparse" not in func._name and has_kernel(str(func._name), "CompositeImplicitAutograd"):
            made = partial(func._op_dk, _COMPOSITE)
        key = None if made is not None or func.namespace == "aten" else _key_of_script(func)
        return made if key is None else partial(func._op_dk, key)

    def signature_of(self, key: plan_keys.Key, make: Callable[[], OpSignature]) -> OpSignature:
        """The signature of a copy, a read or an op with a handler; `make` makes it where none is kept."""
        signature = self.signatures.get(key)
        if signature is None:
            if len(self.signatures) >= PLANS_LIMIT:
                self.signatures.clear()
                self.copies.clear()
            signature = self.signatures[key] = make()
        return signature

    def clear(self) -> None:
        """Drop all plans: the cache is full, or something that they depend on has changed (the default dtype)."""
        for route in self.routes.values():
            route.plans.clear()
        self._count = 0

    def learn(self, route: Route, args: tuple[TorchAny, ...], kwargs: dict[str, TorchAny], gpu: VirtualGpu) -> Plan:
        """Make and keep the plan for this call.

        Raises what PyTorch raises for wrong arguments, DataDependentShape, or NotEmulated for an op without meta kernel.
        """
        key = route.key(args, kwargs)  # before it runs: some ops change the metadata of their arguments
        try:
            plan = infer(self.metas, route.func, args, kwargs, gpu.current.device())
            complete(plan, route.func, gpu.workspaces_of(plan.signature))
        except OtherLayout:
            run = self.run_other_layout
            signature = OpSignature(route.func._schema.name, (), (), launches=False)
            plan = Plan(signature, gpu.current.device(), Constant(None), (), ())
            plan.make_by(lambda gpu, caller, args, kwargs: run(route.func, args, kwargs))
        if not plan.kept:
            return plan
        if self._count >= PLANS_LIMIT:
            self.clear()
        self._count += 1
        route.plans[key] = plan
        return plan

    def leaves_device(self, kwargs: dict[str, TorchAny]) -> bool:
        """Whether the call's `device` argument names another kind of device, so that there is nothing to plan."""
        device = kwargs.get("device")
        return device is not None and device.type not in OURS

"""The plan cache: what an op does to virtual tensors is learned once and then looked up.

Shape inference by PyTorch's meta kernels costs some 150 microseconds per op; a training step repeats the same few hundred
calls for ever. So the first call of an (op, looks of its arguments) is inferred and written down as a `Plan`: each result
is a new tensor of some meta, a view of an argument, an argument itself, or a constant.

    route = plans.route(torch.ops.aten.relu.default)
    plan = route.finder(len(args))(args, kwargs)    # None if it was not learned yet
    plan.outcome   # New(meta, 96)
"""

from __future__ import annotations

from typing import Any

import torch

from replayer.op_signature import OpSignature
from replayer.tensor import plan_keys
from replayer.tensor.known_values import can_fold
from replayer.tensor.plan import Plan
from replayer.tensor.shape_inference import elsewhere, infer
from replayer.tensor.tensor_meta import OURS, TensorMeta, TensorMetaTable

PLANS_LIMIT = 50_000  # plans kept, of all ops together; beyond it the cache starts anew


class Route:
    """What is known about one op: how to read its arguments and the plans made so far."""

    __slots__ = ("_keyers", "_tensor_class", "finders", "func", "plans", "special")

    def __init__(self, func: torch._ops.OpOverload, tensor_class: type, special: Any) -> None:
        self.func = func
        self.plans: dict[plan_keys.Key, Plan] = {}
        self.special = special  # a handler that replaces the plan altogether (copies and reads), or None
        self._tensor_class = tensor_class
        # By the number of positional arguments:
        self.finders: list[plan_keys.Keyer | None] = [None] * (len(func._schema.arguments) + 1)
        self._keyers: dict[int, plan_keys.Keyer] = {}

    def finder(self, count: int) -> plan_keys.Keyer:
        """What finds the plan of a call with `count` positional arguments, or None."""
        made = self.finders[count]
        if made is None:
            made = self.finders[count] = plan_keys.keyer(self.func, count, self._tensor_class, self.plans.get)
        return made

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> plan_keys.Key:
        """Under what the plan of this call is kept."""
        keyer = self._keyers.get(len(args))
        if keyer is None:
            keyer = self._keyers[len(args)] = plan_keys.keyer(self.func, len(args), self._tensor_class)
        key: plan_keys.Key = keyer(args, kwargs)
        return key


class PlanCache:
    """All routes, the interned metas, and the learning. `tensor_class` is what has `.meta` and `.allocation`."""

    def __init__(self, tensor_class: type) -> None:
        self.metas = TensorMetaTable(tensor_class)
        self.routes: dict[int, Route] = {}  # by id of the op, which the route keeps alive: ops hash in Python, ids in C
        self.specials: dict[torch._ops.OpOverload, Any] = {}
        self.signatures: dict[plan_keys.Key, OpSignature] = {}  # of copies and reads, which have no plan
        self.looks: dict[plan_keys.Key, TensorMeta] = {}  # of what `Tensor.to` makes
        self._tensor_class = tensor_class
        self._count = 0

    def route(self, func: torch._ops.OpOverload) -> Route:
        made = self.routes.get(id(func))
        if made is None:
            made = self.routes[id(func)] = Route(func, self._tensor_class, self.specials.get(func))
        return made

    def keep_signature(self, key: plan_keys.Key, signature: OpSignature) -> OpSignature:
        """Remember the signature of a copy or read."""
        if len(self.signatures) >= PLANS_LIMIT:
            self.signatures.clear()
            self.looks.clear()
        self.signatures[key] = signature
        return signature

    def forget(self) -> None:
        """Learn everything anew: the cache is full, or something that plans depend on has changed (the default dtype)."""
        for route in self.routes.values():
            route.plans.clear()
        self._count = 0

    def learn(self, route: Route, args: tuple[Any, ...], kwargs: dict[str, Any], current: int) -> Plan:
        """Make and keep the plan for this call. `current` is the device of ops that have no tensor argument.

        Raises what PyTorch raises for wrong arguments, DataDependentShape, or NotEmulated for an op without meta kernel.
        """
        key = route.key(args, kwargs)  # before: some ops change the looks of their arguments
        plan = self.infer(route.func, args, kwargs, current)
        if self._count >= PLANS_LIMIT:
            self.forget()
        self._count += 1
        route.plans[key] = plan
        return plan

    def infer(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], current: int) -> Plan:
        """What would be learned about this call."""
        plan = infer(self.metas, self._tensor_class, func, args, kwargs, current)
        if can_fold(func, plan):
            plan.compute_too()
        return plan

    def leaves(self, kwargs: dict[str, Any]) -> bool:
        """Whether the call's `device` argument leads away from the device, so that there is nothing to plan."""
        device = kwargs.get("device")
        return device is not None and device.type not in OURS

    def elsewhere(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of such a call."""
        return elsewhere(self._tensor_class, func, args, kwargs)

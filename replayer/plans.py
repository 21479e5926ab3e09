"""What an op does to virtual tensors, learned once and then looked up: the plan cache.

Shape inference by PyTorch's meta kernels costs some 150 microseconds per op; a training step repeats the same few hundred calls
for ever. So the first call of an (op, looks of its arguments) runs the meta kernel on empty stand-ins and writes down what
came out, as a `Plan`: each result is a new tensor of some spec, a view of an argument, an argument itself, or a constant.

    route = plans.route(torch.ops.aten.relu.default)
    plan = route.plans[route.keyer(len(args))(args, kwargs)]
    plan.outcome   # New(spec)

Note [What the stand-ins tell]
Stand-ins are meta tensors, each with a storage of its own, as large as its argument's allocation. A result that shares its
storage with a stand-in is a view of that argument (or the argument itself, if it is the same object); a stand-in whose
shape or storage changed was resized (`resize_`, out variants) or rebound (`set_`). So aliasing is observed, not declared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from replayer import keys
from replayer.errors import DataDependentShape, NotEmulated
from replayer.sites import Site
from replayer.specs import BACKEND, Spec, Specs

PLANS_LIMIT = 50_000  # plans kept, of all ops together; beyond it the cache starts anew

Where = tuple[int | str, int]  # an argument by position or name, and its index in a list, or -1


class New(NamedTuple):
    """A new tensor."""

    spec: Spec
    size_bytes: int


class View(NamedTuple):
    """A tensor of look `spec` on the allocation of an argument."""

    spec: Spec
    of: Where


class Same(NamedTuple):
    """An argument itself."""

    of: Where


class Constant(NamedTuple):
    """No tensor."""

    value: Any


class Several(NamedTuple):
    """A tuple or list of outcomes; C++ takes a list for either."""

    parts: tuple[Any, ...]


Outcome = New | View | Same | Constant | Several


class Reshaped(NamedTuple):
    """An argument that the op gave another look. `rebound` names the argument whose allocation it took over, if any."""

    of: Where
    spec: Spec
    size_bytes: int
    rebound: Where | None


class Kind(IntEnum):
    """The shapes of outcome that the dispatch has a short way for."""

    NEW = 0  # one new tensor
    NEWS = 1  # several new tensors, or None among them
    SAME = 2  # a positional argument itself, and nothing reshaped
    VIEW = 3  # a view of a positional argument
    OTHER = 4


@dataclass(slots=True, eq=False)
class Plan:
    """What one call does. `writes` names the arguments written into: (position or name, whether it is a list)."""

    site: Site
    device: int
    outcome: Outcome
    writes: tuple[tuple[int | str, bool], ...]
    reshaped: tuple[Reshaped, ...]
    kind: int = field(init=False, default=Kind.OTHER)
    spec: Any = field(init=False, default=None)  # of NEW and VIEW
    size_bytes: int = field(init=False, default=0)  # of NEW
    news: tuple[Any, ...] = field(init=False, default=())  # of NEWS: (spec, size_bytes) or None
    at: int = field(init=False, default=0)  # of SAME and VIEW: the argument's position

    def __post_init__(self) -> None:
        outcome = self.outcome
        if self.reshaped:
            return
        if isinstance(outcome, New):
            self.kind, self.spec, self.size_bytes = int(Kind.NEW), *outcome
        elif isinstance(outcome, Several) and all(isinstance(part, New) or part == Constant(None) for part in outcome.parts):
            self.kind = int(Kind.NEWS)
            self.news = tuple([tuple(part) if isinstance(part, New) else None for part in outcome.parts])
        elif isinstance(outcome, (Same, View)) and isinstance(outcome.of[0], int) and outcome.of[1] < 0:
            self.kind, self.at = int(Kind.SAME if isinstance(outcome, Same) else Kind.VIEW), outcome.of[0]
            self.spec = outcome.spec if isinstance(outcome, View) else None


class Route:
    """What is known about one op: how to read its arguments and the plans made so far."""

    __slots__ = ("_tensor_class", "func", "keyers", "plans", "special")

    def __init__(self, func: torch._ops.OpOverload, tensor_class: type, special: Any) -> None:
        self.func = func
        self.plans: dict[keys.Key, Plan] = {}
        self.special = special  # a handler that replaces the plan altogether (copies and reads), or None
        self._tensor_class = tensor_class
        self.keyers: dict[int, keys.Keyer] = {}  # by the number of positional arguments

    def keyer(self, count: int) -> keys.Keyer:
        """What reads the key from a call with `count` positional arguments."""
        made = self.keyers.get(count)
        if made is None:
            made = self.keyers[count] = keys.keyer(self.func, count, self._tensor_class)
        return made


class Plans:
    """All routes, the interned specs, and the learning. `tensor_class` is what has `.spec` and `.allocation`."""

    def __init__(self, tensor_class: type) -> None:
        self.specs = Specs()
        self.routes: dict[int, Route] = {}  # by id of the op, which the route keeps alive: ops hash in Python, ids in C
        self.specials: dict[torch._ops.OpOverload, Any] = {}
        self.sites: dict[keys.Key, Site] = {}  # of copies and reads, which have no plan
        self.looks: dict[keys.Key, Spec] = {}  # of what `Tensor.to` makes
        self._tensor_class = tensor_class
        self._count = 0

    def route(self, func: torch._ops.OpOverload) -> Route:
        made = self.routes.get(id(func))
        if made is None:
            made = self.routes[id(func)] = Route(func, self._tensor_class, self.specials.get(func))
        return made

    def keep_site(self, key: keys.Key, site: Site) -> Site:
        """Remember the site of a copy or read."""
        if len(self.sites) >= PLANS_LIMIT:
            self.sites.clear()
            self.looks.clear()
        self.sites[key] = site
        return site

    def learn(self, route: Route, key: keys.Key, args: tuple[Any, ...], kwargs: dict[str, Any], current: int) -> Plan:
        """Make and keep the plan for this call. `current` is the device of ops that have no tensor argument.

        Raises what PyTorch raises for wrong arguments, DataDependentShape, or NotEmulated for an op without meta kernel.
        """
        plan = self.infer(route.func, args, kwargs, current)
        if self._count >= PLANS_LIMIT:
            for other in self.routes.values():
                other.plans.clear()
            self._count = 0
        self._count += 1
        route.plans[key] = plan
        return plan

    def infer(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], current: int) -> Plan:
        """What the meta kernel of `func` says about this call."""
        refuse_unknown_shape(func, args)
        stand_ins = _StandIns(self._tensor_class, current)
        meta_args = tuple([stand_ins.of(value, (i, -1)) for i, value in enumerate(args)])
        meta_kwargs = {name: stand_ins.of(value, (name, -1)) for name, value in kwargs.items()}
        device = stand_ins.settle(func)
        if "device" in kwargs:
            device = on_device(kwargs["device"], device)
        results = _run(func, meta_args, meta_kwargs)
        outcome = self._outcome(results, stand_ins, device)
        reshaped = tuple(self._reshaped(stand_ins, device))
        arguments = func._schema.arguments
        writes = []
        for i, argument in enumerate(arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                if i < len(args) or argument.name in kwargs:
                    writes.append((i if i < len(args) else argument.name, "List" in str(argument.type)))
        outputs = tuple(_new_shapes(outcome))
        site = Site(
            func._schema.name,
            tuple(shape for shape, _ in stand_ins.looks),
            tuple(dtype for _, dtype in stand_ins.looks),
            outputs,
            _launches(func, outcome, bool(writes), reshaped),
        )
        return Plan(site, device, outcome, tuple(writes), reshaped)

    def _outcome(self, result: Any, stand_ins: _StandIns, device: int) -> Outcome:
        if isinstance(result, torch.Tensor):
            where = stand_ins.objects.get(id(result))
            if where is not None:
                return Same(where)
            spec = self.specs.like(result, device)
            owner = stand_ins.storages.get(result.untyped_storage()._cdata)
            if owner is not None:
                return View(spec, owner)
            return New(spec, result.untyped_storage().nbytes())
        if isinstance(result, (list, tuple)):
            parts = tuple([self._outcome(part, stand_ins, device) for part in result])
            return Several(parts)
        return Constant(result)

    def _reshaped(self, stand_ins: _StandIns, device: int) -> list[Reshaped]:
        changed = []
        for where, before, stand_in, storage, size_bytes in stand_ins.made:
            now = self.specs.like(stand_in, before.index)
            owner = stand_in.untyped_storage()._cdata
            rebound = stand_ins.storages.get(owner) if owner != storage else None
            new_bytes = stand_in.untyped_storage().nbytes()
            if now is not before or rebound is not None or new_bytes > size_bytes or owner != storage:
                changed.append(Reshaped(where, now, new_bytes, rebound))
        return changed


class _StandIns:
    """The meta tensors that stand in for a call's arguments, and what was seen while making them."""

    def __init__(self, tensor_class: type, current: int) -> None:
        self._tensor_class = tensor_class
        self._devices: set[int] = set()
        self._current = current
        self._host: torch.Tensor | None = None
        self.objects: dict[int, Where] = {}  # id of a stand-in -> argument
        self.storages: dict[int, Where] = {}  # its storage -> argument
        self.made: list[tuple[Where, Spec, torch.Tensor, int, int]] = []
        self.looks: list[tuple[tuple[int, ...], str]] = []

    def of(self, value: Any, where: Where) -> Any:
        if isinstance(value, torch.Tensor):
            self.looks.append((tuple(value.shape), str(value.dtype).removeprefix("torch.")))
            return self._virtual(value, where) if type(value) is self._tensor_class else self._plain(value)
        if isinstance(value, (list, tuple)):
            return [self.of(item, (where[0], i)) for i, item in enumerate(value)]
        if isinstance(value, torch.device):
            return torch.device("meta") if value.type in ("cuda", BACKEND) else value
        if isinstance(value, torch.Generator):
            return None  # meta kernels draw nothing
        return value

    def _virtual(self, value: Any, where: Where) -> torch.Tensor:
        spec: Spec = value.spec
        self._devices.add(spec.index)
        size_bytes = max(value.allocation.size_bytes, spec.extent_bytes + spec.offset * spec.itemsize)
        base = torch.empty(-(-size_bytes // spec.itemsize), dtype=spec.dtype, device="meta")
        stand_in = base.as_strided(spec.shape, spec.stride, spec.offset)
        storage = stand_in.untyped_storage()
        self.objects[id(stand_in)] = where
        self.storages[storage._cdata] = where
        self.made.append((where, spec, stand_in, storage._cdata, storage.nbytes()))
        return stand_in

    def _plain(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor of the host among device tensors: legal if it is a scalar, as on CUDA."""
        if value.dim():
            self._host = value
        return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device="meta")

    def settle(self, func: torch._ops.OpOverload) -> int:
        """The one device of the arguments. Raises CUDA's error if there are several."""
        found = [f"cuda:{index}" for index in sorted(self._devices)]
        if self._host is not None and found:
            found.append(str(self._host.device))
        if len(found) > 1:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {found[0]} and {found[1]}!"
            )
        return next(iter(self._devices), self._current)


def on_device(device: torch.device | None, otherwise: int) -> int:
    """The index of a cuda device given as an argument."""
    return otherwise if device is None or device.index is None else device.index


def refuse_unknown_shape(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> None:
    """Raise DataDependentShape if the result's shape depends on values."""
    if torch.Tag.dynamic_output_shape in func.tags and not _fixed_shape(func, args):
        raise DataDependentShape(func._schema.name)


def _fixed_shape(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> bool:
    """Ops that PyTorch tags although these arguments fix the shape: indexing by integers."""
    if func is torch.ops.aten.index.Tensor:
        return not any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return False


def _run(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return func(*args, **kwargs)
    except NotImplementedError as missing:
        advice = "PyTorch has no shape rule for it; use another op or do this on the CPU"
        raise NotEmulated(func._schema.name, advice) from missing
    except RuntimeError as refused:
        raise _in_kernel_words(func, args, kwargs) or refused from None


_TRIED_ELEMENTS = 1 << 20  # of an argument on which an error is tried again


def _in_kernel_words(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RuntimeError | None:
    """The error that a real kernel gives for arguments that the meta kernel refused: some of PyTorch's are worded otherwise."""

    def on_host(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.numel() > _TRIED_ELEMENTS:
                raise OverflowError
            return torch.zeros(value.shape, dtype=value.dtype)
        if isinstance(value, list):
            return [on_host(item) for item in value]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    try:
        func(*[on_host(value) for value in args], **{name: on_host(value) for name, value in kwargs.items()})
    except (RuntimeError, OverflowError) as error:
        return error if type(error) is RuntimeError else None
    return None


# Ops that make a tensor and leave it as it is, or only change a look.
_IDLE = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided set_ resize_ resize_as_ detach_ squeeze_"
    " unsqueeze_ t_ transpose_ as_strided_ swapaxes_ swapdims_ record_stream is_same_size _has_same_storage_numel".split()
)


def _launches(func: torch._ops.OpOverload, outcome: Outcome, writes: bool, reshaped: tuple[Reshaped, ...]) -> bool:
    bare = func._schema.name.rpartition("::")[2]
    if bare in _IDLE:
        return False
    return writes or any(True for _ in _new_shapes(outcome))


def _new_shapes(outcome: Outcome) -> list[tuple[int, ...]]:
    if isinstance(outcome, New):
        return [outcome.spec.shape]
    if isinstance(outcome, Several):
        return [shape for part in outcome.parts for shape in _new_shapes(part)]
    return []

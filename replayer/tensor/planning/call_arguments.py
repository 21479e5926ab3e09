"""Converts an op's tensor arguments to meta tensors or CPU tensors.

    class OnMeta(CallArguments):
        device_type = "meta"
        def virtual(self, value, where): return torch.empty(value.shape, dtype=value.dtype, device="meta")

    arguments = OnMeta(VirtualTensor)
    func(*[arguments.of(value) for value in args])
    arguments.device(current=0), arguments.seen      # 0, [((2, 3), "float32")]
"""

from __future__ import annotations

from functools import cache

import torch

from replayer.op_signature import OpSignature
from replayer.tensor.plan import Where
from replayer.tensor.tensor_meta import OURS, TensorMeta, is_virtual
from replayer.torch_types import Kwargs, Op, TorchAny
from traces.model.layouts import Shape, memory_layout


class CallArguments:
    device_type = "cpu"  # device that replaces the virtual GPU

    def __init__(self, tensor_class: type) -> None:
        self.tensor_class = tensor_class
        self.seen: list[tuple[Shape, str]] = []
        self.placed: list[tuple[Shape, Shape]] = []
        self.devices: dict[int, None] = {}  # indices of the virtual GPUs, in the order of the arguments
        self.option: int | None = None  # the first argument that is an int or a bool

    def of(self, value: TorchAny, where: Where = (0, -1)) -> TorchAny:
        if isinstance(value, torch.Tensor):
            self.add_operand(value)
            if not is_virtual(value, self.tensor_class):
                return self.plain(value)
            meta: TensorMeta = value.tensor_meta  # type: ignore[attr-defined]
            self.devices[meta.index] = None
            self.placed.append((meta.shape, meta.stride))
            return self.virtual(value, where)
        if isinstance(value, (list, tuple)):
            return [self.of(item, (where[0], i)) for i, item in enumerate(value)]
        if self.option is None and isinstance(value, int):
            self.option = int(value)
        return torch.device(self.device_type) if isinstance(value, torch.device) and value.type in OURS else value

    def named(self, func: Op, kwargs: Kwargs) -> dict[str, TorchAny]:
        """Convert keyword arguments. PyTorch's profiler does not record the shapes of `out=` arguments."""
        results, converted = _results(func), {}
        for name, value in kwargs.items():
            inputs = len(self.seen)
            converted[name] = self.of(value, (name, -1))
            if name in results:
                del self.seen[inputs:]
        return converted

    def add_operand(self, value: torch.Tensor) -> None:
        self.seen.append((shape_of(value), str(value.dtype).removeprefix("torch.")))

    def virtual(self, value: TorchAny, where: Where) -> torch.Tensor:
        raise NotImplementedError

    def plain(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def device(self, current: int) -> int:
        return next(iter(self.devices), current)

    def signature(self, op: str, outputs: tuple[Shape, ...], launches: bool) -> OpSignature:
        shapes, dtypes = tuple(shape for shape, _ in self.seen), tuple(dtype for _, dtype in self.seen)
        return OpSignature(op, shapes, dtypes, outputs, launches, layout=memory_layout(self.placed), option=self.option)


def shape_of(tensor: torch.Tensor) -> Shape:
    return (tensor.numel(),) if tensor.is_nested else tuple(tensor.shape)


@cache
def _results(func: Op) -> frozenset[str]:
    return frozenset(argument.name for argument in func._schema.arguments if argument.is_out)

"""Implements two data-parallel models that measure the time of each stage: scatter, replicate, compute and gather.

    meter = Meter(gpus=[0, 1])
    model = PlainDataParallel(net.cuda(), [0, 1], meter)     # or MeteredDataParallel: the same stages
    with meter.counting(), meter.timing():
        criterion(model(images), labels).backward()
    meter.parts["replicate"]        # Part(ns=5_912_345, host_bytes=0, peer_bytes=46_756_648)

In the backward pass, `gather_backward` scatters the output gradients, and `broadcast_backward` sums the weight gradients.

Note [What is counted]
    The meter counts every tensor that the four functions of torch.nn.parallel.comm move to another device. Freezing layers does
    not reduce the bytes, because autograd passes zeros to `broadcast_backward` for missing gradients.

Note [What is timed]
    All GPUs are synchronized around each stage. The rest of a step counts as computation: layers, loss and optimizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import comm, gather, parallel_apply, replicate, scatter

PARTS = ("labels", "scatter", "replicate", "gather", "gather_backward", "broadcast_backward")

# names of the `comm` functions' stages in the backward pass
_IN_BACKWARD = {"scatter": "gather_backward", "reduce_add_coalesced": "broadcast_backward"}


@dataclass
class Part:
    ns: int = 0
    host_bytes: int = 0
    peer_bytes: int = 0


class Meter:
    def __init__(self, gpus: Sequence[int]) -> None:
        self.gpus = list(gpus)
        self.parts: dict[str, Part] = {}
        self._timed = False
        self._open = ""  # the running stage; autograd's threads run only while the main thread waits

    def reset(self) -> None:
        self.parts = {}

    def now_ns(self) -> int:
        for index in self.gpus:
            torch.cuda.synchronize(index)
        return time.perf_counter_ns()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begun_ns = self.now_ns() if self._timed else 0
        self._open = name
        try:
            yield
        finally:
            self._open = ""
        if self._timed:
            self._at(name).ns += self.now_ns() - begun_ns

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Synchronize the GPUs around every stage. See Note [What is timed]."""
        self._timed = True
        try:
            yield
        finally:
            self._timed = False

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the bytes copied by torch.nn.parallel.comm. See Note [What is counted]."""
        moves: dict[str, Callable[..., Iterator[tuple[Tensor, torch.device]]]] = {
            "broadcast_coalesced": _broadcast, "scatter": _scattered, "gather": _gathered, "reduce_add_coalesced": _reduced
        }  # fmt: skip
        before = {name: getattr(comm, name) for name in moves}
        for name, moved in moves.items():
            setattr(comm, name, self._counted(name, before[name], moved))
        try:
            yield
        finally:
            for name, call in before.items():
                setattr(comm, name, call)

    def moved(self, tensor: Tensor, source: torch.device) -> None:
        if tensor.device == source:
            return
        part = self._at(self._open)
        size_bytes = tensor.numel() * tensor.element_size()
        if "cpu" in (tensor.device.type, source.type):
            part.host_bytes += size_bytes
        else:
            part.peer_bytes += size_bytes

    def _at(self, name: str) -> Part:
        return self.parts.setdefault(name, Part())

    def _counted(
        self, name: str, call: Callable[..., Any], moved: Callable[..., Iterator[tuple[Tensor, torch.device]]]
    ) -> Callable[..., Any]:
        @wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if not self._open:
                with self.part(_IN_BACKWARD.get(name, name)):
                    return counted(*args, **kwargs)
            result = call(*args, **kwargs)
            for tensor, source in moved(result, *args):
                self.moved(tensor, source)
            return result

        return counted


def _broadcast(copies: Any, tensors: Sequence[Tensor], *_: Any) -> Iterator[tuple[Tensor, torch.device]]:
    for on_one in copies:
        yield from zip(on_one, (tensor.device for tensor in tensors), strict=True)


def _scattered(chunks: Any, tensor: Tensor, *_: Any) -> Iterator[tuple[Tensor, torch.device]]:
    yield from ((chunk, tensor.device) for chunk in chunks)


def _gathered(whole: Tensor, tensors: Sequence[Tensor], dim: int, *_: Any) -> Iterator[tuple[Tensor, torch.device]]:
    first = 0
    for tensor in tensors:
        yield whole.narrow(dim, first, tensor.size(dim)), tensor.device
        first += tensor.size(dim)


def _reduced(sums: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], *_: Any) -> Iterator[tuple[Tensor, torch.device]]:
    for of_one in inputs:
        yield from zip(sums, (tensor.device for tensor in of_one), strict=True)


class PlainDataParallel(nn.Module):
    """Implements data parallelism with `replicate`, `scatter`, `parallel_apply` and `gather` of torch.nn.parallel."""

    def __init__(self, module: nn.Module, gpus: Sequence[int], meter: Meter) -> None:
        super().__init__()
        self.module = module
        self.gpus = list(gpus)
        self.meter = meter

    def forward(self, images: Tensor) -> Tensor:
        with self.meter.part("scatter"):
            shares = scatter(images, self.gpus)
        if len(self.gpus) == 1:
            scores: Tensor = self.module(shares[0])
            return scores
        gpus = self.gpus[: len(shares)]  # a batch of one image uses only one GPU
        with self.meter.part("replicate"):
            replicas = replicate(self.module, gpus)
        outputs = parallel_apply(replicas, shares, devices=gpus)
        with self.meter.part("gather"):
            scores = gather(outputs, gpus[0])
        return scores


class MeteredDataParallel(nn.DataParallel[nn.Module]):
    """Measures each stage of nn.DataParallel."""

    def __init__(self, module: nn.Module, gpus: Sequence[int], meter: Meter) -> None:
        super().__init__(module, device_ids=list(gpus))
        self.meter = meter

    def scatter(self, *args: Any, **kwargs: Any) -> Any:
        with self.meter.part("scatter"):
            return super().scatter(*args, **kwargs)

    def replicate(self, *args: Any, **kwargs: Any) -> Any:
        with self.meter.part("replicate"):
            return super().replicate(*args, **kwargs)

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        with self.meter.part("gather"):
            return super().gather(*args, **kwargs)


PARALLEL: dict[str, type[PlainDataParallel] | type[MeteredDataParallel]] = {
    "plain": PlainDataParallel,
    "nn": MeteredDataParallel,
}

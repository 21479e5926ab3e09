"""torch.Tensor: what the host reads from the device is noted in order, and a batch's way to the device is a phase.

    loss.item()                     # noted: a replay answers it with the same number
    batch = batch.cuda()            # phase "h2d"

On a machine without a GPU the reads of plain tensors count, so that a script can be recorded there too. What torch reads
for its own purposes within another read, or within a data loader, is not the script's (`Quiet`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, partial, wraps
from types import ModuleType, TracebackType
from typing import Any, Self

from tracer.state import recorder, started
from traces.model import READ_LIMIT
from traces.patching import PhaseScope, patch

_SCALAR_READS = "item __bool__ __float__ __int__ __index__ __complex__ is_nonzero"
_COPIES = "tolist cpu"


class _Depth(threading.local):
    quiet = 0


_DEPTH = _Depth()  # of this thread; the surfaces are global, and so are threads


class Quiet:
    """Within it, this thread's reads are not noted."""

    def __enter__(self) -> Self:
        _DEPTH.quiet += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _DEPTH.quiet -= 1


def counting(torch: ModuleType) -> Callable[[Any], bool]:
    """A predicate: whether a read of this tensor is the script's, and of a tensor on the device."""

    @cache
    def without_gpu() -> bool:
        """Asked late and of NVML, as `device_count` does: the driver, once started, would not survive a fork."""
        return bool(torch.cuda.device_count() == 0)

    def counts(tensor: Any) -> bool:
        """A process that has trained nothing, a loader's worker say, has no reads either. On the host, an optimizer reads its
        own step counts, which on a GPU machine lie there too and are not noted."""
        to = None if _DEPTH.quiet else started()
        return to is not None and (tensor.is_cuda or (without_gpu() and to.phase != "optimizer"))

    return counts


def install(torch: ModuleType) -> None:
    """Wrap reads and moves of torch.Tensor, and of its subclasses that have their own."""
    classes = [torch.Tensor, *torch.Tensor.__subclasses__()]
    scope = PhaseScope("h2d", recorder)
    reads = counting(torch)
    wrappers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
        **dict.fromkeys(_SCALAR_READS.split(), partial(_scalar_read, reads=reads)),
        **dict.fromkeys(_COPIES.split(), partial(_copy_read, reads=reads)),
        "to": partial(_move, reads=reads, scope=scope),
        "cuda": partial(_upload, scope=scope),
        "copy_": partial(_copy_into, reads=reads, scope=scope),
        "__repr__": partial(_shown, reads=reads),
    }
    for cls in classes:
        # torch.Tensor has most of these from a base in C, which cannot be patched.
        own = {name: getattr(cls, name) for name in dir(cls)} if cls is torch.Tensor else vars(cls)
        patch(cls, **{name: wrap(own[name]) for name, wrap in wrappers.items() if name in own})
    for name in ("equal", "allclose"):
        patch(torch, **{name: _comparison(getattr(torch, name), reads, name)})


def _note(tensor: Any, host: Any) -> None:
    """Note what of `tensor` has come to the host, as a tensor or as nested lists; large tensors are data, not decisions."""
    if tensor.numel() > READ_LIMIT or tensor.is_complex() or not tensor.numel():
        return
    with Quiet():
        nested = host.tolist() if hasattr(host, "tolist") else host
    if (to := recorder()) is not None:
        to.aside_called()
        to.read("aten::copy_", str(tensor.dtype).removeprefix("torch."), _flat(nested))


def _flat(nested: Any) -> list[float]:
    if isinstance(nested, list):
        return [value for item in nested for value in _flat(item)]
    return [float(nested)]


def _scalar_read(read: Callable[..., Any], reads: Callable[[Any], bool]) -> Callable[..., Any]:
    @wraps(read)
    def noted(self: Any, *args: Any) -> Any:
        to = recorder() if reads(self) else None
        if to is None:
            return read(self, *args)
        to.aside_called()
        with Quiet():
            value = read(self, *args)
        if not isinstance(value, complex):
            to.read("aten::_local_scalar_dense", str(self.dtype).removeprefix("torch."), [float(value)])
        return value

    return noted


def _copy_read(read: Callable[..., Any], reads: Callable[[Any], bool]) -> Callable[..., Any]:
    @wraps(read)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not reads(self):
            return read(self, *args, **kwargs)
        with Quiet():
            copied = read(self, *args, **kwargs)
        _note(self, copied)
        return copied

    return noted


def _move(move: Callable[..., Any], reads: Callable[[Any], bool], scope: PhaseScope) -> Callable[..., Any]:
    """`to`: up to the device, down to the host, or neither."""
    down = _copy_read(move, reads)

    @wraps(move)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        target = _device_type(args, kwargs)
        if target == "cpu" and self.is_cuda:
            return down(self, *args, **kwargs)
        if target != "cuda" or self.is_cuda:
            return move(self, *args, **kwargs)
        with scope:
            return move(self, *args, **kwargs)

    return moved


def _upload(upload: Callable[..., Any], scope: PhaseScope) -> Callable[..., Any]:
    @wraps(upload)
    def uploaded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_cuda:
            return upload(self, *args, **kwargs)
        with scope:
            return upload(self, *args, **kwargs)

    return uploaded


def _copy_into(copy: Callable[..., Any], reads: Callable[[Any], bool], scope: PhaseScope) -> Callable[..., Any]:
    @wraps(copy)
    def copied(self: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(source, "is_cuda") or self.is_cuda is source.is_cuda:
            return copy(self, source, *args, **kwargs)
        if self.is_cuda:
            with scope:
                return copy(self, source, *args, **kwargs)
        copy(self, source, *args, **kwargs)
        if reads(source):
            _note(source, self)
        return self

    return copied


def _shown(show: Callable[..., Any], reads: Callable[[Any], bool]) -> Callable[..., Any]:
    """`repr` reads a tensor in pieces of torch's own making; a replay reads it once."""

    @wraps(show)
    def shown(self: Any, **kwargs: Any) -> Any:
        if not reads(self):
            return show(self, **kwargs)
        with Quiet():
            text = show(self, **kwargs)
            host = self.detach().cpu() if self.is_cuda and self.numel() <= READ_LIMIT else self
        _note(self, host)
        return text

    return shown


def _comparison(compare: Callable[..., Any], reads: Callable[[Any], bool], name: str) -> Callable[..., Any]:
    @wraps(compare)
    def compared(one: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if not reads(one):
            return compare(one, other, *args, **kwargs)
        with Quiet():
            answer = compare(one, other, *args, **kwargs)
        if (to := recorder()) is not None:
            to.read(f"aten::{name}", "bool", [float(answer)])
        return answer

    return compared


def _device_type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The type of the device that `to` is asked for, or None if only for a dtype or layout."""
    wanted = kwargs.get("device", kwargs.get("other", args[0] if args else None))
    if isinstance(wanted, str):
        return wanted.partition(":")[0]
    if isinstance(wanted, int):
        return "cuda"
    if wanted is not None and hasattr(wanted, "is_cuda"):  # a tensor to be like
        return "cuda" if wanted.is_cuda else "cpu"
    return getattr(wanted, "type", None)

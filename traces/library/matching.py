"""Finds out which network of the library a script uses. The library contains published step times.

    found = nearest_network(files, signature)
    found.cell.name, found.differences      # "v100/resnet50", ()
    match_with(cell, signature).differences   # ("optimizer SGD in the library, AdamW in the script",)

Note [The same network]
    Two signatures describe the same network if their numbers of parameters, parameter bytes and modules are equal. Modules are
    counted by torch.nn class, and modules without parameters are ignored. A signature does not show strides and image sizes
    inside the network, channels_last, TF32 and cudnn.benchmark.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traces.library.cells import CellFile, LibraryCell
from traces.model.trace import TraceLibraryError
from traces.model.workload import InputTensor, WorkloadSignature

_PARAMETRIC = frozenset(
    "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Linear Bilinear BatchNorm1d BatchNorm2d BatchNorm3d"
    " SyncBatchNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d GroupNorm LayerNorm RMSNorm Embedding EmbeddingBag RNN LSTM"
    " GRU RNNCell LSTMCell GRUCell MultiheadAttention PReLU".split()
)


@dataclass(frozen=True)
class Match:
    cell: LibraryCell
    differences: tuple[str, ...]  # one sentence per difference
    scalable: bool  # whether the networks differ only in optimizer or input size
    input_ratio: float = 1.0  # the script's input size divided by that of the library entry
    is_related: bool = True  # whether the networks have most modules in common

    @property
    def is_same(self) -> bool:
        return not self.differences


def nearest_network(files: Sequence[CellFile], script: WorkloadSignature) -> Match:
    candidates = [(*_distance(file.workload(model), script), model, n) for n, file in enumerate(files) for model in file.models]
    if not candidates:
        raise TraceLibraryError("the library has no step times of any network on this GPU")
    *_, model, n = min(candidates)
    return match_with(files[n].cell(model), script)


def match_with(cell: LibraryCell, script: WorkloadSignature) -> Match:
    measured = cell.workload
    network = tuple(_of_network(measured, script))
    training = () if network else tuple(_of_training(measured, script))
    same_work = not any(_differ(measured, script, name) for name in ("trainable_parameters", "autocast"))
    ratio = _input_ratio(measured, script)
    scalable = not network and same_work and ratio is not None
    ours, theirs = Counter(_parametric(measured)), Counter(_parametric(script))
    is_related = not network or 2 * (ours & theirs).total() > (ours | theirs).total()
    return Match(cell, network + training, scalable, ratio or 1.0, is_related)


def batch_of(script: WorkloadSignature) -> int | None:
    """Return the batch size of a script, or None if the first dimensions of its inputs differ."""
    sizes = {tensor.shape[0] if tensor.shape else 0 for tensor in script.inputs or ()}
    return sizes.pop() if len(sizes) == 1 and 0 not in sizes else None


def _of_network(measured: WorkloadSignature, script: WorkloadSignature) -> Iterator[str]:
    # see Note [The same network]
    if measured.parameters != script.parameters:
        yield f"{_figure(measured.parameters)} parameters in the library, {_figure(script.parameters)} in the script"
    elif measured.parameter_bytes != script.parameter_bytes:
        yield (
            f"{_figure(measured.parameter_bytes)} parameter bytes in the library, "
            f"{_figure(script.parameter_bytes)} in the script"
        )
    of_ours, of_theirs = _parametric(measured), _parametric(script)
    for name in sorted(of_ours.keys() | of_theirs.keys()):
        if of_ours.get(name, 0) != of_theirs.get(name, 0):
            yield f"{name} modules: {of_ours.get(name, 0)} in the library, {of_theirs.get(name, 0)} in the script"


def _of_training(measured: WorkloadSignature, script: WorkloadSignature) -> Iterator[str]:
    for name in ("trainable_parameters", "optimizer", "autocast"):
        if _differ(measured, script, name):
            yield (
                f"{name.replace('_', ' ')} {_figure(getattr(measured, name))} in the "
                f"library, {_figure(getattr(script, name))} in the script"
            )
    ours, theirs = _samples(measured), _samples(script)
    if ours is not None and theirs is not None and ours != theirs:
        yield f"inputs {_listed(measured.inputs, 'N')} in the library, {_listed(script.inputs)} in the script"


def _differ(measured: WorkloadSignature, script: WorkloadSignature, name: str) -> bool:
    ours, theirs = getattr(measured, name), getattr(script, name)
    return ours is not None and theirs is not None and ours != theirs


def _input_ratio(measured: WorkloadSignature, script: WorkloadSignature) -> float | None:
    ours, theirs = _samples(measured), _samples(script)
    if ours is None or theirs is None or ours == theirs:
        return 1.0
    if [(len(shape), dtype) for shape, dtype in ours] != [(len(shape), dtype) for shape, dtype in theirs]:
        return None
    return sum(math.prod(shape) for shape, _ in theirs) / max(sum(math.prod(shape) for shape, _ in ours), 1)


def _samples(of: WorkloadSignature) -> list[tuple[tuple[int, ...], str]] | None:
    return None if of.inputs is None else [(tensor.shape[1:], tensor.dtype) for tensor in of.inputs]


def _listed(inputs: tuple[InputTensor, ...] | None, batch: str = "") -> str:
    texts = [str(tensor) for tensor in inputs or ()]
    if batch:
        texts = [batch + text[len(str(tensor.shape[0])) :] for text, tensor in zip(texts, inputs or (), strict=True)]
    return " and ".join(texts) or "none"


def _distance(measured: WorkloadSignature, script: WorkloadSignature) -> tuple[int, float, int]:
    far = abs(math.log((measured.parameters or 1) / (script.parameters or 1)))
    return (1 if any(_of_network(measured, script)) else 0, far, len(list(_of_training(measured, script))))


def _parametric(of: WorkloadSignature) -> dict[str, int]:
    return {name: count for name, count in (of.modules or {}).items() if name in _PARAMETRIC and count}


def _figure(value: object) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

"""Looks up the durations of training phases in published measurements.

    pace = LibraryPace(choice, optimizers())
    pace.watch(model, [((32, 3, 224, 224), "float32")], "off", True)    # the script calls `model`; finds v100/resnet50
    call = pace.take_call()             # ModelCall(cell=..., batch=32, forward_ns=31_724_691, ...)
    pace.called(call)
    pace.phase_ns("backward")           # the measured time without the optimizer's share

Note [Models missing from the library]
    If the library lacks the script's model, the replay stops with a list of similar models. With the option `estimate`, the
    replay continues and marks its estimates.

Note [Modules that compute the loss]
    A script may call a module that contains both the model and the loss, such as timm's ClassificationTask. Only the first
    input of such a module is an input of the model. The other inputs are labels.

Note [Batches that did not fit]
    The library may show that a batch did not fit on the GPU. The virtual GPU then gets only the memory that the largest fitting
    batch needs. The virtual GPU's allocator then raises the out-of-memory error.

Note [Batches that are known to fit]
    The library does not contain the addresses of memory blocks. The virtual GPU's memory may therefore be more fragmented than
    the real GPU's memory. If a batch was measured and did fit, the virtual GPU therefore also uses small pieces of free memory.

Note [The optimizer's share]
    The library has one time for loss, zero_grad, backward and optimizer together. The optimizer's part is computed for SGD with
    momentum and weight decay, with eleven reads or writes per parameter. The GPU is assumed to reach four fifths of the memory
    bandwidth in its data sheet.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from replayer.cost_model.constants import BANDWIDTH_FROM_BYTES, MOVES_PER_PARAMETER, OPTIMIZER_BANDWIDTH_REACHED
from replayer.errors import NotInLibrary
from traces.library.catalogue import duplicate_text
from traces.library.cells import CellTimes, Gpu, LibraryCell, NotMeasured, read_cells
from traces.library.matching import Match, batch_of, match_with, nearest_network
from traces.model.layouts import Shape
from traces.model.run import LibraryCall, LibrarySteps
from traces.model.trace import Column, Origin
from traces.model.workload import InputTensor, WorkloadSignature
from traces.names.cards import card_of
from traces.script.configuration import LibraryChoice
from traces.script.step_rule import Optimizers
from traces.script.workload_observer import initialized_parameters, with_modules

_LOSSES = "torch.nn.modules.loss"  # the time "rest" includes calls of these modules
_MOST_FULL_STEPS = 3  # the script is stopped after this number of steps above the measured memory limit

COUNTED_ELSEWHERE_NS = 1  # time of a phase whose real time is already part of another phase


@dataclass(frozen=True, slots=True, eq=False)
class ModelCall:
    of: LibraryCall
    origin: Origin
    phases_ns: Mapping[str, int]


_Copies = tuple[Column, Column]


def _is_wrapper(module: Any, parameters: list[Any]) -> bool:
    """Return True if one child of the module has all of the module's parameters."""
    children = getattr(module, "_modules", {}).values()
    return any(len(initialized_parameters(child)) == len(parameters) for child in children if child is not None)


def _copies_of(cells: list[LibraryCell]) -> _Copies | None:
    by_bytes: dict[int, list[int]] = {}
    for cell in cells:
        h2d_ns = cell.phases_ns.get("h2d")
        if h2d_ns is not None and cell.workload.batch_bytes:
            sizes = (cell.batches * cell.workload.batch_bytes).tolist()
            for size_bytes, duration_ns in zip(sizes, h2d_ns.tolist(), strict=True):
                by_bytes.setdefault(size_bytes, []).append(duration_ns)
    sizes = sorted(by_bytes)
    return (np.array(sizes), np.array([int(np.median(by_bytes[size])) for size in sizes])) if sizes else None


@dataclass
class _Pending:
    ns: dict[str, int] = field(default_factory=dict)
    origin: Origin = Origin.PHASE

    def add(self, call: ModelCall) -> None:
        if call.of.trains:
            for name, duration_ns in call.phases_ns.items():
                if name not in ("h2d", "forward"):
                    more_ns = 0 if name == "optimizer" else self.ns.get(name, 0)
                    self.ns[name] = more_ns + duration_ns
            self.origin = call.origin


class LibraryPace:
    """Looks up published step times. The class is not thread-safe."""

    def __init__(self, choice: LibraryChoice, optimizers: Optimizers) -> None:
        self._choice = choice
        self._optimizers = optimizers
        self._files = [read_cells(path) for path in choice.files]
        self.gpu: Gpu = self._files[0].gpu
        self._named: LibraryCell | None = self._files[0].cell(choice.model) if choice.model else None
        self._models = weakref.WeakKeyDictionary[Any, WorkloadSignature]()
        # for each model, the autocast dtype that its `forward` sets
        self._autocast_within = weakref.WeakKeyDictionary[Any, str]()
        # the model that provides the current times, and True if it trains
        self._running: tuple[Any, WorkloadSignature, bool] | None = None
        self._matches: dict[tuple[object, ...], Match] = {}
        self._call: ModelCall | None = None
        self._calls: list[ModelCall] = []
        self._pending = _Pending()
        self._played: dict[tuple[object, ...], LibrarySteps] = {}
        self._copied = False  # True if the library provided the time of a copy in this step
        self._last: LibraryCell | None = self._named
        self._copies_by_cell: dict[str, _Copies | None] = {}
        self._said: dict[str, list[str]] = {}  # printed messages for each subject
        self.has_next_time = False  # True if the library has the time of the next call
        self._full: LibraryCell | None = None
        self._full_steps = 0
        self.is_known_to_fit = False  # True if the current call's batch fits; Note [Batches that are known to fit]
        bandwidth = card_of(self.gpu.device).memory_gbps * OPTIMIZER_BANDWIDTH_REACHED
        self._ns_per_parameter_byte = MOVES_PER_PARAMETER / bandwidth

    def watch(self, module: Any, inputs: Iterable[tuple[Shape, str]], autocast: str | None, grad_enabled: bool) -> None:
        """Find the published step times for the called module and its inputs. Raises NotInLibrary if no times were
        published."""
        self._call = self._running = None
        self.has_next_time = bool(self._pending.ns) and type(module).__module__ == _LOSSES
        parameters = initialized_parameters(module)
        if not parameters or not parameters[0].is_cuda:
            return
        self._full, self.is_known_to_fit = None, False
        of_inputs = tuple(InputTensor(shape, dtype) for shape, dtype in inputs)
        trainable = sum(p.numel() for p in parameters if p.requires_grad)
        autocast = self._autocast_within.get(module, autocast)
        base = self._models.get(module)
        if base is None:
            base = self._models[module] = with_modules(WorkloadSignature(), [module])
        trains = grad_enabled and trainable > 0
        signature = replace(
            base, inputs=of_inputs, autocast=autocast,
            trainable_parameters=trainable if trains else None,
            optimizer=self._optimizers.class_name if trains else None,
        )  # fmt: skip
        match = self._match(signature)
        if not match.is_same and _is_wrapper(module, parameters):  # Note [Modules that compute the loss]
            alone = replace(signature, inputs=of_inputs[:1])
            if (of_model := self._match(alone)).is_same:
                signature, match = alone, of_model
        batch = batch_of(signature)
        if not match.is_same or batch is None:
            self._call = self._of_another(match, batch, trains)
            return
        self._last = match.cell
        self._call = self._of_cell(match.cell, batch, trains)
        self.has_next_time = self._call is not None
        self._running = module, signature, trains

    def returned(self) -> None:
        self._running = None

    def autocast_entered(self, dtype: str) -> None:
        """Take the library's times in half precision for the running model, because the model's `forward` has entered autocast.
        Raises NotInLibrary if the library has no times with autocast for the model."""
        if self._running is None or self._running[1].autocast != "off":
            return
        module, signature, trains = self._running
        self._running, self._autocast_within[module] = None, dtype
        match = self._match(with_autocast := replace(signature, autocast=dtype))
        if not match.is_same:
            self.set_up_ends()  # ignore the times that were found without autocast
            self._said.clear()
            self._of_another(match, batch_of(with_autocast), trains)

    def memory_limit(self, peak_bytes: int) -> int | None:
        """If the script's batch did not fit on the real GPU, return a memory limit in bytes with which the virtual GPU runs out
        of memory, too. Return None if the batch fitted."""
        # see Note [Batches that did not fit]
        if self._full is None:
            return None
        needed_bytes = self._full.peak_at(self._full.last_batch)
        if not self._full_steps:
            return needed_bytes
        return peak_bytes - 1 if needed_bytes is None else min(peak_bytes - 1, needed_bytes)

    def take_call(self) -> ModelCall | None:
        call, self._call = self._call, None
        return call

    def called(self, call: ModelCall) -> None:
        self._calls.append(call)
        self._pending.add(call)

    def phase(self, name: str) -> tuple[int, Origin] | None:
        pending = self._pending
        if name in ("loss", "zero_grad") and name not in pending.ns:
            return (COUNTED_ELSEWHERE_NS, pending.origin) if self._last is not None else None
        duration_ns = pending.ns.pop(name, None)
        return None if duration_ns is None else (max(duration_ns, COUNTED_ELSEWHERE_NS), pending.origin)

    def copy_ns(self, size_bytes: int) -> int | None:
        if size_bytes < BANDWIDTH_FROM_BYTES or (found := self._copies()) is None:
            return None
        of_bytes, of_ns = found
        self._copied = True
        measured_bytes = min(max(size_bytes, of_bytes[0]), of_bytes[-1])
        return int(np.interp(measured_bytes, of_bytes, of_ns) * size_bytes / measured_bytes)

    def step_ended(self, trained: bool) -> int:
        """End the training step. Raises NotInLibrary after several steps with a batch that did not fit on the real GPU. The
        library has no step times for such a batch."""
        if self._full is not None and trained:
            self._full_steps += 1
            if self._full_steps > _MOST_FULL_STEPS:
                self._stop(f"{self._full.name}: no step ran out of memory here, and the library has no times of such steps")
        calls, self._calls = tuple(self._calls), []
        self._pending = _Pending()
        copied, self._copied = self._copied, False
        of = tuple(call.of for call in calls)
        alike = self._played.get((copied, of)) or LibrarySteps(0, _sum_of(calls, copied), of)
        self._played[copied, of] = replace(alike, steps=alike.steps + 1)
        return list(self._played).index((copied, of))

    def set_up_ends(self) -> None:
        self._calls.clear()
        self._pending = _Pending()
        self._copied = False

    def notes(self) -> tuple[LibrarySteps, ...]:
        return tuple(self._played.values())

    def estimates_all(self) -> bool:
        return bool(self._played) and not any(steps.calls for steps in self.notes())

    def messages(self) -> tuple[str, ...]:
        more = " (other models of the script without times: {})"
        return tuple(texts[0] + (more.format(len(texts) - 1) if texts[1:] else "") for texts in self._said.values())

    # --- finding the cell

    def _match(self, script: WorkloadSignature) -> Match:
        samples = tuple((tensor.shape[1:], tensor.dtype) for tensor in script.inputs or ())
        model = (script.parameters, script.parameter_bytes, tuple(sorted((script.modules or {}).items())))
        key = (*model, samples, script.trainable_parameters, script.optimizer, script.autocast)
        found = self._matches.get(key)
        if found is None:
            found = match_with(self._named, script) if self._named is not None else nearest_network(self._files, script)
            self._matches[key] = found
            having = [of.path for of in self._files if found.cell.model in of.models]
            if found.is_same and len(having) > 1:  # Note [One name, one entry] in catalogue.py
                self._stop(duplicate_text(found.cell.name, having[0], having[1]))
        return found

    def _of_cell(self, cell: LibraryCell, batch: int, trains: bool) -> ModelCall | None:
        if not trains:
            self._say(f"evaluation is estimated to take as long as {cell.name}'s forward pass in training")
            how = "training's forward pass"
            return self._made(cell, cell.for_batch(batch, extrapolates=True), trains, Origin.SCALED, how)
        try:
            times = cell.for_batch(batch)
        except NotMeasured as beyond:
            if beyond.out_of_memory:
                self._say(str(beyond))
                if not self._choice.estimate:
                    self._full = cell
                    return None
            elif not self._choice.estimate:
                self._stop(f"{beyond}; add --estimate to continue with a marked estimate")
            times = cell.for_batch(batch, extrapolates=True)
            return self._made(cell, times, trains, Origin.ROOFLINE, "estimated: outside the measured range")
        self.is_known_to_fit = True
        self._say(f"the script trains {cell.name}; times were measured on {cell.gpu.device}, {_source(cell)}")
        if times.is_scaled:
            self._say(f"batch {batch} of {cell.name} was not measured; times are interpolated between the nearest batch sizes")
        return self._made(cell, times, trains, Origin.SCALED if times.is_scaled else Origin.PHASE)

    def _of_another(self, match: Match, batch: int | None, trains: bool) -> ModelCall | None:
        # see Note [Models missing from the library]
        cell = match.cell
        differing = "; ".join(match.differences[:3]) or "the inputs do not share a batch size"
        text = f"the library has no times of the script's model on {self.gpu.name}"
        if match.is_related:
            text += f"; the nearest is {cell.name} ({differing})"
        if self._named is not None:
            text = f"the script does not train {cell.name}: {differing}"
        if not self._choice.estimate:
            self._stop(f"{text}; add --estimate to continue with marked estimates")
        if match.scalable and batch is not None:
            self._say(f"{text}; its times are used as an estimate", "other models")
            times = cell.for_batch(batch, extrapolates=True)
            ns = {name: round(of * match.input_ratio) for name, of in times.phases_ns.items()}
            return self._made(cell, replace(times, phases_ns=ns), trains, Origin.ROOFLINE, f"estimated: {differing}")
        self._say(f"{text}; each op is estimated from the GPU's data sheet", "other models")
        return None

    def _made(self, cell: LibraryCell, times: CellTimes, trains: bool, origin: Origin, how: str = "") -> ModelCall:
        phases = dict(times.phases_ns)
        if (rest_ns := phases.pop("rest", None)) is not None:  # see Note [The optimizer's share]
            moved_ns = int((cell.workload.parameter_bytes or 0) * self._ns_per_parameter_byte)
            phases["optimizer"] = min(moved_ns, rest_ns // 2)
            phases["backward"] = rest_ns - phases["optimizer"]
        how = how or ("interpolated" if times.is_scaled else "measured")
        return ModelCall(LibraryCall(cell.name, times.batch, trains, how), origin, phases)

    def _copies(self) -> _Copies | None:
        of = self._last.name if self._last is not None else ""
        if of not in self._copies_by_cell:
            cells = [self._last] if self._last is not None else [cell for file in self._files for cell in file.cells()]
            self._copies_by_cell[of] = _copies_of(cells)
        return self._copies_by_cell[of]

    def _say(self, text: str, about: str = "") -> None:
        texts = self._said.setdefault(about or text, [])
        if text not in texts:
            texts.append(text)

    def _stop(self, text: str) -> None:
        print(f"trace: {text}", file=sys.stderr, flush=True)
        raise NotInLibrary


def _sum_of(calls: tuple[ModelCall, ...], copied: bool) -> dict[str, int]:
    total: dict[str, int] = {}
    for call in calls:
        for name, duration_ns in call.phases_ns.items():
            if name == "forward" or (name == "h2d" and copied) or (call.of.trains and name not in ("h2d", "optimizer")):
                total[name] = total.get(name, 0) + duration_ns
            elif name == "optimizer" and call.of.trains:
                total[name] = duration_ns
    return total


def _source(cell: LibraryCell) -> str:
    source = cell.source
    of = source.repository or source.study or "a recording"
    return f"{of} {source.commit[:10]}" if source.commit else of

"""Formats the result of `trace fit`: the memory that a script needs, and a table of GPUs.

    for line in fit_lines(need, found, width=100, colour=False): print(line)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from replayer.memory.rerun_requests import Outcome
from traces.library.limits import MeasuredLimit
from traces.model.workload import WorkloadSignature
from traces.names.cards import Card
from traces.rates.estimate_errors import EstimateError
from tui.commands.fit_times import ESTIMATED, StepTime
from tui.formatting import ABSENT, FEW_DEVICES, count_text, counted, paint, size_text, table, time_text, wrapped


@dataclass(frozen=True)
class Need:
    script: str  # file name
    batch: int | None  # batch size; None if unknown
    batch_option: str | None  # the script's option for the batch size, None if unknown
    steps_run: int  # number of training steps
    devices: int  # number of GPUs
    peak_allocated_bytes: int  # peak of the memory in tensors
    peak_reserved_bytes: int  # peak of the memory that the allocator reserves
    workload: WorkloadSignature
    notes: list[str]  # messages about the run


@dataclass(frozen=True)
class OtherMemory:
    limit: MeasuredLimit
    batch: int
    needs_bytes: int


@dataclass(frozen=True)
class CardFit:
    """Describes whether a script fits on one GPU."""

    card: Card
    outcome: Outcome  # the allocator's result at the script's own batch size
    estimated_batch: int | None  # the largest batch according to the allocator, None if unknown
    step: StepTime | None  # step time; None if unknown
    batch: int | None = None  # the script's own batch size, as its model sees it
    limit: MeasuredLimit | None = None  # the limit of the same model, measured on this GPU
    other: OtherMemory | None = None  # set only if a measured limit does not apply
    verified: bool | None = None  # True if runs at the limit and at the next batch size confirmed it, None without runs

    @property
    def fits(self) -> bool:
        seen = None if self.limit is None or self.batch is None else self.limit.fits(self.batch)
        return self.outcome.fits if seen is None else seen

    @property
    def largest_batch(self) -> int | None:
        return self.estimated_batch if self.limit is None else self.limit.largest(self.estimated_batch)

    @property
    def is_measured(self) -> bool:
        return self.limit is not None and self.limit.is_exact

    @property
    def fits_in_simulation(self) -> bool:
        return self.fits and self.outcome.fits

    @property
    def headroom_bytes(self) -> int:
        return self.card.memory_bytes - self.card.context_bytes - self.outcome.reserved_bytes

    def facts(self) -> CardFacts:
        outcome, step = self.outcome, self.step
        return CardFacts(
            gpu=self.card.names[0],
            memory_bytes=self.card.memory_bytes,
            context_bytes_estimated=self.card.context_bytes,
            fits=self.fits,
            fits_by_allocator=outcome.fits,
            peak_allocated_bytes=outcome.peak_bytes,
            peak_reserved_bytes=outcome.reserved_bytes,
            headroom_bytes=self.headroom_bytes if self.fits_in_simulation else None,
            alloc_retries=outcome.retries,
            out_of_memory=None if outcome.fits else OutOfMemoryFacts(outcome.steps + 1, outcome.asked_bytes),
            largest_batch=self.largest_batch,
            largest_batch_from=None if self.largest_batch is None else "measured" if self.is_measured else "estimated",
            largest_batch_by_allocator=self.estimated_batch,
            largest_batch_verified=self.verified,
            measured=None if self.limit is None else LimitFacts.of(self.limit),
            measured_with_other_memory=None if self.other is None else LimitFacts.of(self.other.limit),
            step_ns=None if step is None else step.step_ns,
            step_from=None if step is None else step.source,
            step_estimated=None if step is None else step.is_estimate,
            step_error=None if step is None else step.error,
            step_communication_ns_estimated=None if step is None else step.communication_ns,
        )


@dataclass(frozen=True)
class OutOfMemoryFacts:
    """Describes the script's first memory request that does not fit into GPU memory."""

    step: int  # 1-based number of the step
    asked_bytes: int  # size of the request


@dataclass(frozen=True)
class LimitFacts:
    """Contains the largest batch size that was measured on a real GPU."""

    entry: str  # the library entry with the measurement
    largest_batch: int | None  # the largest measured batch size
    out_of_memory_batch: int | None  # smallest batch size that did not fit into memory

    @staticmethod
    def of(limit: MeasuredLimit) -> LimitFacts:
        return LimitFacts(limit.cell.name, limit.fitted, limit.full)


@dataclass(frozen=True)
class CardFacts:
    """Says whether a script fits into the memory of a GPU."""

    gpu: str  # name of the GPU
    memory_bytes: int  # total memory
    context_bytes_estimated: int  # memory that CUDA takes for itself
    fits: bool  # True if the script fits, according to measurements or, without them, to the simulation
    fits_by_allocator: bool  # True if the script fits in the simulation of PyTorch's allocator
    peak_allocated_bytes: int  # peak of allocated memory in the simulation
    peak_reserved_bytes: int  # peak of reserved memory in the simulation
    headroom_bytes: int | None  # null if the script does not fit
    alloc_retries: int  # how often the allocator freed cached memory to avoid running out of memory
    out_of_memory: OutOfMemoryFacts | None  # null if the script fits
    largest_batch: int | None  # null if unknown
    largest_batch_from: Literal["measured", "estimated"] | None  # how `largest_batch` was found
    largest_batch_by_allocator: int | None  # largest batch size in the simulation
    largest_batch_verified: bool | None  # result of `--verify`
    measured: LimitFacts | None
    measured_with_other_memory: LimitFacts | None  # a measured limit that does not apply, because the memory peaks differ
    step_ns: int | None  # null if unknown; an estimate contains only GPU time
    step_from: str | None  # where the step time comes from, such as the name of a library entry
    step_estimated: bool | None  # False if the step time was measured
    step_error: EstimateError | None  # null if the step is from the library
    step_communication_ns_estimated: int | None  # part of the step time in which the GPU only communicates, with `--nproc`


def fit_lines(need: Need, found: Sequence[CardFit], *, width: int, colour: bool) -> list[str]:
    at = f" at batch {count_text(need.batch)}" if need.batch is not None else ""
    reserved = f"and PyTorch reserves {size_text(need.peak_reserved_bytes)} if available"
    lines = [f"{need.script} needs {size_text(need.peak_allocated_bytes)}{at}, {reserved}.", ""]
    heads = ["card", "memory", "fits", "reserved", "left", "largest batch", "step"]
    rows = [_row(one) for one in found]
    marks = {True: "green", False: "red"}
    head, *body = table(heads, rows, width=width)
    lines += [paint(head, "bold", colour=colour)]
    lines += [paint(line, marks[one.fits], colour=colour) for line, one in zip(body, found, strict=True)]
    lines += ["", *_footnotes(need, found, width)]
    return lines


def _row(one: CardFit) -> list[str]:
    outcome = one.outcome
    largest = ABSENT if one.largest_batch is None else count_text(one.largest_batch) if one.largest_batch else "none"
    largest = largest if one.largest_batch is None or one.is_measured else f"~{largest}"
    largest += {True: " ✓", False: " ?", None: ""}[one.verified]
    return [
        one.card.names[0],
        size_text(one.card.memory_bytes),
        "yes" if one.fits else "NO",
        size_text(outcome.reserved_bytes) if one.fits_in_simulation else ABSENT,
        size_text(one.headroom_bytes) if one.fits_in_simulation else ABSENT,
        largest,
        ABSENT if one.step is None else _step_text(one.step),
    ]


def _step_text(step: StepTime) -> str:
    error = "" if step.error is None else f" ±{100 * step.error.error:.0f} %"
    return f"{'~' if step.is_estimate else ''}{time_text(step.step_ns)}{error}"


def _footnotes(need: Need, found: Sequence[CardFit], width: int) -> list[str]:
    columns = _memory_sentences(need, found), _batch_sentences(need, found), _step_sentences(need, found)
    lines = [line for sentences in columns for line in wrapped(" ".join(sentences), width, "", "  ")]
    if not need.batch_option:
        lines += ["To find the largest batch, give the script's option for it, for example --batch-option=--batch-size."]
    return lines + [line for note in need.notes for line in wrapped(f"{note[0].upper()}{note[1:]}.", width, "", "  ")]


def _memory_sentences(need: Need, found: Sequence[CardFit]) -> list[str]:
    run = counted(need.steps_run, "step") if need.steps_run else "the script"
    sentences = [
        f"Memory sizes come from a simulation of PyTorch's allocator with the requests of {run}. The size of the CUDA context"
        " is estimated (2 KiB per resident thread) and subtracted. The code of kernels is not counted. cuDNN workspaces of 3x3"
        " convolutions in fp32 are counted on cards older than Ampere."
    ]
    failed = [one for one in found if not one.fits and not one.outcome.fits]
    if failed and len(failed) <= 3:
        for one in failed:
            size, step = size_text(one.outcome.asked_bytes), one.outcome.steps + 1
            sentences.append(f"{one.card.names[0]}: out of memory in step {step}, on a request of {size}.")
    return sentences


def _batch_sentences(need: Need, found: Sequence[CardFit]) -> list[str]:
    sentences = []
    if any(one.largest_batch is not None and not one.is_measured for one in found):
        sentences.append("Batches marked with ~ are estimated with the simulated allocator.")
    if seen := [one.limit for one in found if one.limit is not None]:
        sentences.append(f"Measured limits: {'; '.join(map(_limit_text, seen))}.")
    sentences += [_other_text(one.other) for one in found if one.other is not None]
    if need.batch_option and any(one.verified is not None for one in found):
        sentences.append("✓: runs confirmed that this batch fits and one more sample does not. ?: runs contradicted this.")
    return sentences


def _step_sentences(need: Need, found: Sequence[CardFit]) -> list[str]:
    sentences, steps = [], [one.step for one in found if one.step is not None]
    estimates = [step for step in steps if step.is_estimate and step.source.startswith(ESTIMATED)]
    if estimates:
        corrected = estimates[0].source.removeprefix(ESTIMATED)
        sentences.append(f"Step times marked with ~ are GPU times, estimated op by op as in trace predict{corrected}.")
        sentences.append("If the CPU launches ops more slowly than the GPU computes them, a step takes longer.")
        errors = [step.error for step in estimates if step.error is not None]
        worst = max(errors, key=lambda error: (error.error, not error.same_card), default=None)
        unchecked = [one.card.names[0] for one in found if one.step and one.step.error and not one.step.error.same_card]
        gpus = " or ".join(unchecked) if len(unchecked) <= FEW_DEVICES else f"{len(unchecked)} of these GPUs"
        sentences += [] if worst is None else [worst.sentence(gpus)]
    if not need.steps_run and (passes := [step.source for step in steps if not step.source.startswith(ESTIMATED)]):
        sources = ", ".join(dict.fromkeys(passes))
        sentences.append(f"Step times marked with ~ are the times of a forward pass in training, from the library: {sources}.")
    if ranks := [step for step in steps if step.communication_ns]:
        most = time_text(max(step.communication_ns for step in ranks))
        sources = ", ".join(dict.fromkeys(step.source for step in ranks if not step.source.startswith(ESTIMATED)))
        measured = f"; the other times are from the library: {sources}" if sources else ""
        sentences.append(f"Steps include up to {most} of communication, estimated from the card's link{measured}.")
    return sentences


def _limit_text(limit: MeasuredLimit) -> str:
    beyond = "" if limit.full is None else f", {count_text(limit.full)} did not"
    return f"{limit.cell.name}, batch {count_text(limit.fitted)} fitted{beyond}"


def _other_text(other: OtherMemory) -> str:
    cell, batch = other.limit.cell, count_text(other.batch)
    release = f" (PyTorch {cell.source.torch})" if cell.source.torch else ""
    took = f"batch {batch} took {size_text(cell.peak_at(other.batch))} in that measurement{release}"
    needs = f"takes {size_text(other.needs_bytes)} here"
    return f"{_limit_text(other.limit)}; but {took} and {needs}, so that limit does not apply to this script."

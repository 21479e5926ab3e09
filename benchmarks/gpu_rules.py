# mypy: allow-untyped-calls
"""Compares which calls a real GPU and the virtual GPU accept.

    python benchmarks/gpu_rules.py ask gpu.json.gz                      # on a machine with a GPU: about a minute on 16 cores
    python benchmarks/gpu_rules.py ask virtual.json.gz --virtual h200   # the same calls on the virtual GPU
    python benchmarks/gpu_rules.py compare gpu.json.gz virtual.json.gz

The calls are samples from PyTorch's OpInfo database (`torch.testing._internal`, which needs the package expecttest). The result
of a call is "ok" with the dtypes of the returned tensors, or the type and first line of the error. Each operator is called

* with every dtype, forward and backward, and in place;
* with the database's wrong inputs;
* with each tensor in turn on the CPU, as a 0-dim CPU tensor, or in another dtype;
* with results on the CPU, of another dtype, or in overlapping memory;
* under `use_deterministic_algorithms`, `set_sync_debug_mode("error")` and autocast;
* while a CUDA graph is captured.

The samples are created on the CPU with fixed seeds, and are then moved to the GPU, so that both GPUs get the same calls. If a
kernel does not support a dtype, an extra entry, whose name ends with "by", contains the failing op and its dtype. A worker
process is replaced after a crash, a device-side assert, a failed graph capture, or a call that does not end. The new worker
process continues with the next call. If no worker process can use the GPU, the summary contains the reason.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten  # noqa: E402

DTYPES = (
    "float32 float16 bfloat16 float64 complex64 complex128 complex32 bool uint8 int8 int16 int32 int64 uint16 uint32 uint64"
    " float8_e4m3fn float8_e5m2"
).split()
OTHER_DTYPES = (torch.float64, torch.float16, torch.int64)  # dtypes of one argument; all others have the first dtype
SAMPLES = 3  # number of samples of an operator for the calls with every dtype
RULES_SAMPLES = 2  # number of samples of an operator for all other calls
MOST_NUMBERS = 20_000  # maximum number of elements in the tensors of a sample
LOOKED_AT = 12  # maximum number of samples that are searched for small samples
MOST_TENSORS = 6  # maximum number of tensors of a sample that are moved or cast one after the other
TEXT_LENGTH = 300
CALL_LIMIT_S = 20.0
GPU_ENTRY = "gpu"  # the entry with the GPU's name
FAILED_ENTRY = "failed"  # name of the entry with the error of a worker that cannot use the GPU
SAMPLES_ENTRY = "samples"  # the entry with the signatures of an operator's samples
SAVED_EVERY_S = 20.0
REFUSED_BY = " by"  # suffix of entries that name the op that rejected a dtype
STEPS = ("dtypes", "rules", "capture")  # all operators go through one step before the next step begins

Answers = dict[str, Any]
Change = Callable[[list[Any]], list[Any]]  # changes the flat arguments of a sample


@dataclass(frozen=True)
class Sample:
    """Contains the arguments for one call of an operator, as a flat list of CPU values and a description of the nesting."""

    leaves: list[Any]
    spec: Any
    made_in: torch.dtype

    def signature(self) -> str:
        """Return a short text that is equal for arguments with equal shapes, dtypes and other values."""
        parts = [
            f"{tuple(leaf.shape)}{leaf.dtype}{leaf.layout}" if isinstance(leaf, torch.Tensor) else repr(leaf)[:80]
            for leaf in self.leaves
        ]
        return hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", str(parts)).encode()).hexdigest()[:8]

    def tensors(self) -> list[int]:
        """Return the positions of the first tensors in the flat argument list."""
        return [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)][:MOST_TENSORS]

    def on_gpu(self, dtype: torch.dtype, *, needs_gradient: bool = False) -> list[Any]:
        """Return the leaves on the GPU. Tensors with the sample's original dtype are converted to the new dtype."""
        moved = [_moved(leaf, dtype if getattr(leaf, "dtype", None) == self.made_in else None) for leaf in self.leaves]
        for leaf in moved:
            if needs_gradient and isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
                leaf.requires_grad_()
        return moved

    def call(self, function: Callable[..., Any], leaves: list[Any]) -> Any:
        given, args, kwargs = tree_unflatten(leaves, self.spec)
        return function(given, *args, **kwargs)

    def run(self, function: Callable[..., Any], dtype: torch.dtype, change: Change | None = None) -> Any:
        """Move the arguments to the GPU, apply `change`, and call the function."""
        leaves = self.on_gpu(dtype)
        return self.call(function, leaves if change is None else change(leaves))

    def run_backward(self, function: Callable[..., Any], dtype: torch.dtype) -> list[torch.Tensor | None]:
        return self.backward(function, self.on_gpu(dtype, needs_gradient=True))

    def backward(self, function: Callable[..., Any], leaves: list[Any]) -> list[torch.Tensor | None]:
        """Call the function, and run its backward pass. Returns the gradients."""
        results = [x for x in tree_leaves(self.call(function, leaves)) if isinstance(x, torch.Tensor) and x.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.ones_like(x) for x in results])
        return [leaf.grad for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _moved(leaf: Any, dtype: torch.dtype | None) -> Any:
    if leaf == "cpu" or (isinstance(leaf, torch.device) and leaf.type == "cpu"):
        return "cuda"
    if not isinstance(leaf, torch.Tensor):
        return leaf
    tensor = leaf.detach()
    if dtype is None or dtype == tensor.dtype:
        return tensor.clone().cuda()
    if tensor.layout is torch.strided and not (dtype.is_floating_point or dtype.is_complex or tensor.dtype is torch.bool):
        tensor = (tensor.real if tensor.is_complex() else tensor).abs().nan_to_num().clamp(0, 3)
    return tensor.to(dtype).cuda()


def samples_of(op: Any) -> list[Sample]:
    """Return the first small samples of an operator, created on the CPU in float32 if the operator supports this dtype."""
    known = op.supported_dtypes("cpu") | op.supported_dtypes("cuda")
    made_in = torch.float32 if torch.float32 in known else min(known, key=str)
    for seed in (torch.manual_seed, random.seed):
        seed(0)
    _seed_numpy()
    found = []
    few = {"num_input_tensors": [2]} if op.name.startswith("_foreach") else {}
    for made in itertools.islice(op.sample_inputs("cpu", made_in, **few), LOOKED_AT):
        leaves, spec = tree_flatten((made.input, tuple(made.args), dict(made.kwargs)))
        if sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor)) <= MOST_NUMBERS:
            found.append(Sample(leaves, spec, made_in))
        if len(found) == SAMPLES:
            break
    return found


def _seed_numpy() -> None:
    import numpy

    numpy.random.seed(0)


class Poisoned(Exception):
    """Raised if a call made the process unable to use CUDA."""


def answer_of(call: Callable[[], Any], describe: Callable[[Any], str] | None = None) -> str:
    """Make a call, wait for the GPU, and return the result as text. Raise Poisoned, with the result of the call, if CUDA fails
    afterwards."""
    try:
        result = call()
        torch.cuda.synchronize()
        return f"ok {(describe or _dtypes)(result)}"
    except Exception as error:
        text = str(error).strip().split("\n", 1)[0][:TEXT_LENGTH]
        answer = re.sub(r"0x[0-9a-f]+", "0x", f"{type(error).__name__}: {text}")
    try:
        torch.cuda.synchronize()
    except Exception:
        raise Poisoned(answer) from None
    return answer


def _dtypes(result: Any) -> str:
    return ",".join(_short(leaf) for leaf in tree_leaves(result))


def _short(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf).__name__
    words = str(leaf.dtype).removeprefix("torch.")
    if leaf.layout is not torch.strided:
        words += f"/{str(leaf.layout).removeprefix('torch.')}"
    return words if leaf.device.type == "cuda" else f"{words}/{leaf.device}"


def _layout(result: Any) -> str:
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
    return " ".join(f"{tuple(x.shape)}{tuple(x.stride())}" for x in tensors if not x.is_nested)


@dataclass
class Worker:
    """Makes the calls of one operator in this process. The function `send` receives the name and the result of each call."""

    op: Any
    send: Callable[[str, str | None], None]
    skipped: set[str]
    samples: list[Sample] = field(default_factory=list)

    def ask(self, step: str) -> None:
        self.samples = samples_of(self.op)
        function = self.op.op or self.op.inplace_variant
        if step == "dtypes":
            self.send(SAMPLES_ENTRY, " ".join(sample.signature() for sample in self.samples))
            self._dtypes(function)
        elif step == "rules":
            for k, sample in enumerate(self.samples[:RULES_SAMPLES]):
                self._rules(function, sample, k)
            self._errors()
        else:
            self._capture(function)

    def _case(self, name: str, call: Callable[[], Any], describe: Callable[[Any], str] | None = None) -> str:
        """Make one call, unless an earlier worker process has made it. Returns the answer or ""."""
        if name in self.skipped:
            return ""  # An earlier worker made this call.
        self.send(name, None)
        try:
            answer = answer_of(call, describe)
        except Poisoned as poisoned:
            self.send(name, str(poisoned))
            raise
        self.send(name, answer)
        if " not implemented for '" in answer:
            self.send(f"{name}{REFUSED_BY}", _refused_op(call))
        return answer

    def _dtypes(self, function: Callable[..., Any]) -> None:
        inplace = self.op.inplace_variant
        for name, (k, sample) in itertools.product(DTYPES, enumerate(self.samples)):
            dtype = getattr(torch, name)
            answer = self._case(f"forward {name} {k}", partial(sample.run, function, dtype))
            if not answer.startswith("ok"):
                continue
            if dtype.is_floating_point or dtype.is_complex:
                self._case(f"backward {name} {k}", partial(sample.run_backward, function, dtype))
            if inplace is not None and k == 0:
                self._case(f"inplace {name}", partial(sample.run, inplace, dtype))

    def _rules(self, function: Callable[..., Any], sample: Sample, k: int) -> None:
        first = sample.made_in
        run = partial(sample.run, function, first)
        if not self._case(f"layout {k}", run, _layout).startswith("ok"):
            return
        for at in sample.tensors():
            cpu = sample.leaves[at]
            self._case(f"device {k} {at}", partial(run, partial(_with, at, cpu)))
            self._case(f"scalar {k} {at}", partial(run, partial(_with, at, torch.ones((), dtype=cpu.dtype))))
            for other in OTHER_DTYPES:
                name = str(other).removeprefix("torch.")
                self._case(f"dtype {k} {at} {name}", partial(run, partial(_cast, at, other)))
        self._memory(function, sample, k)
        for name, mode in MODES.items():
            leaves = sample.on_gpu(first)
            with mode():
                self._case(f"{name} {k}", partial(sample.call, function, leaves))
            if name in ("deterministic", "sync"):
                leaves = sample.on_gpu(first, needs_gradient=True)
                with mode():
                    self._case(f"{name}-backward {k}", partial(sample.backward, function, leaves))

    def _memory(self, function: Callable[..., Any], sample: Sample, k: int) -> None:
        """Make calls with results on the CPU, with results of other dtypes, and with results in overlapping memory."""
        first = sample.made_in
        inplace = self.op.inplace_variant
        if inplace is not None and isinstance(sample.leaves[0], torch.Tensor) and sample.leaves[0].dim():
            self._case(f"inplace-expanded {k}", partial(sample.run, inplace, first, _expanded))
            self._case(f"inplace-gradient {k}", lambda: sample.call(inplace, sample.on_gpu(first, needs_gradient=True)))
        if not self.op.supports_out:
            return
        result = sample.run(function, first)
        if isinstance(result, torch.Tensor) and result.layout is torch.strided:
            for name, out in _outputs(result).items():
                self._case(f"out-{name} {k}", partial(sample.run, partial(function, out=out), first))

    def _errors(self) -> None:
        if self.op.error_inputs_func is None:
            return
        function = self.op.op or self.op.inplace_variant
        for k, wrong in enumerate(self.op.error_inputs("cuda")):
            made = wrong.sample_input
            self._case(f"error {k}", partial(function, made.input, *made.args, **made.kwargs))

    def _capture(self, function: Callable[..., Any]) -> None:
        for k, sample in enumerate(self.samples[:RULES_SAMPLES]):
            call = partial(sample.call, function, sample.on_gpu(sample.made_in))
            try:
                call()  # first call outside a capture, to load kernels and libraries
            except Exception:
                continue
            answer = self._case(f"capture {k}", partial(_captured, call))
            if answer and not answer.startswith("ok"):
                raise Poisoned  # After a failed capture, the state of the allocator and the random generators is unknown.


class _LastOp(TorchDispatchMode):
    """Stores the name of the last op, and the dtype of its first tensor."""

    found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next((_short(leaf) for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)), "")
        self.found = f"{str(func).removeprefix('aten.')} {first}"
        return func(*args, **(kwargs or {}))


def _refused_op(call: Callable[[], Any]) -> str:
    """Repeat a failed call, and return the op that failed."""
    last: Any = _LastOp()
    with last:
        answer_of(call)
    return str(last.found)


def _captured(call: Callable[[], Any]) -> Any:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        return call()


def _with(at: int, leaf: Any, leaves: list[Any]) -> list[Any]:
    return [*leaves[:at], leaf, *leaves[at + 1 :]]


def _cast(at: int, dtype: torch.dtype, leaves: list[Any]) -> list[Any]:
    return _with(at, leaves[at].to(dtype), leaves)


def _expanded(leaves: list[Any]) -> list[Any]:
    """Expand the first tensor along its first dimension, so that several elements share memory."""
    return [leaves[0][:1].expand(leaves[0].shape), *leaves[1:]]


def _outputs(result: torch.Tensor) -> dict[str, torch.Tensor]:
    wrong = torch.float32 if result.dtype is torch.int64 else torch.int64
    return {
        "cpu": result.detach().cpu(),
        "dtype": torch.empty_like(result, dtype=wrong, requires_grad=False),
        "double": torch.empty_like(result, dtype=torch.float64, requires_grad=False),
        "shape": result.new_empty((2, *result.shape)),
        "expanded": result.new_empty((1,) * result.dim()).expand(result.shape),
        "gradient": result.detach().clone().requires_grad_(result.is_floating_point()),
    }


class _Switch(AbstractContextManager[None]):
    def __init__(self, on: Callable[[], Any], off: Callable[[], Any]) -> None:
        self._on, self._off = on, off

    def __enter__(self) -> None:
        self._on()

    def __exit__(self, *_: object) -> None:
        self._off()


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "deterministic": lambda: _Switch(
        lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)
    ),
    "sync": lambda: _Switch(lambda: torch.cuda.set_sync_debug_mode("error"), lambda: torch.cuda.set_sync_debug_mode("default")),
    "autocast-float16": lambda: torch.autocast("cuda", torch.float16),
    "autocast-bfloat16": lambda: torch.autocast("cuda", torch.bfloat16),
}


def serve(ops: list[Any] | str, connection: Connection, start: Callable[[], None]) -> None:
    """Run the tasks that arrive in this worker process, until the process can no longer use CUDA. Runs in a worker process. A
    worker process that was not forked receives a pattern for operator names, and imports the operators."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Failed kernels print a line per thread.
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        chosen = operators(ops) if isinstance(ops, str) else ops
        start()
        connection.send((GPU_ENTRY, torch.cuda.get_device_name()))
    except Exception as error:
        connection.send((FAILED_ENTRY, f"{type(error).__name__}: {error}"[:TEXT_LENGTH]))
        os._exit(1)
    while (task := connection.recv()) is not None:
        number, step, skipped = task
        try:
            Worker(chosen[number], lambda name, answer: connection.send((name, answer)), set(skipped)).ask(step)
            connection.send(("", None))  # this task is done
        except Poisoned:
            break
        except Exception as error:  # The operator has no samples on this machine.
            connection.send(("", f"{type(error).__name__}: {error}"[:TEXT_LENGTH]))
    connection.close()
    os._exit(0)  # without CUDA's cleanup, which fails after an assert


@dataclass
class Process:
    """Represents a worker process in its parent process."""

    process: Any
    connection: Connection
    ready: bool = False  # the worker process can use the GPU
    task: tuple[int, str] | None = None
    call: str = ""  # the call that the worker process is making, or ""
    answered: bool = False  # the worker process has sent at least one result of its task
    since: float = 0.0


class Asking:
    """Distributes the operators among worker processes, and collects the results.

    Worker processes are forked, because forking takes a fraction of a second. If a forked worker process cannot use the GPU
    because an import has initialized CUDA, all later workers are new Python interpreters.
    """

    def __init__(self, ops: list[Any], pattern: str, processes: int, start: Callable[[], None], deadline: float) -> None:
        self.ops = ops
        self.answers: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
        self.gpu = ""
        self.signatures: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.restarts = 0
        self.failed_starts: list[str] = []
        self._todo = deque((number, step) for step in STEPS for number in range(len(ops)))
        self._pattern = pattern
        self._most_failed_starts = 2 * processes
        self._forks = True
        self._start = start
        self._deadline = deadline
        self._workers = [self._new() for _ in range(processes)]

    def _new(self) -> Process:
        context = multiprocessing.get_context("fork" if self._forks else "spawn")
        ours, theirs = context.Pipe()
        ops = self.ops if self._forks else self._pattern
        process: Any = context.Process(target=serve, args=(ops, theirs, self._start), daemon=True)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        return Process(process, ours)

    def run(self, save: Callable[[], object]) -> None:
        """Distribute calls until all are made or the time is up, and call `save` from time to time."""
        saved = time.monotonic()
        while any(worker.task or not worker.ready for worker in self._workers) and time.monotonic() < self._deadline:
            if time.monotonic() > saved + SAVED_EVERY_S:
                save()
                saved = time.monotonic()
            asked = [worker for worker in self._workers if worker.task or not worker.ready]
            ready = wait([worker.connection for worker in asked], timeout=1.0)
            for worker in asked:
                if worker.connection in ready:
                    self._receive(worker)
                elif worker.call and time.monotonic() - worker.since > CALL_LIMIT_S:
                    self._replace(worker, f"died: not ended after {CALL_LIMIT_S:.0f} s")
        for worker in self._workers:
            worker.process.kill()

    def unfinished(self) -> list[tuple[int, str]]:
        return [worker.task for worker in self._workers if worker.task] + list(self._todo)

    def _next(self, worker: Process) -> None:
        worker.task, worker.call, worker.answered = (self._todo.popleft() if self._todo else None), "", False
        worker.since = time.monotonic()
        if worker.task:
            worker.connection.send((*worker.task, list(self.answers[worker.task])))

    def _receive(self, worker: Process) -> None:
        try:
            name, answer = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(5)
            code = worker.process.exitcode
            self._replace(worker, f"died: {signal.Signals(-code).name if code and code < 0 else code}")
            return
        if name == GPU_ENTRY:
            self.gpu, worker.ready = answer or "", True
            self._next(worker)
        elif name == FAILED_ENTRY:
            self._replace(worker, answer or "")
        elif worker.task and name:
            worker.call, worker.since = (name if answer is None else ""), time.monotonic()
            if name == SAMPLES_ENTRY:
                self.signatures[name_of(self.ops[worker.task[0]])] = answer or ""
            elif answer is not None:
                self.answers[worker.task][name], worker.answered = answer, True
        elif worker.task:
            if answer is not None:
                self.problems[f"{name_of(self.ops[worker.task[0]])} {worker.task[1]}"] = answer
            self._next(worker)

    def _replace(self, worker: Process, why: str) -> None:
        """Replace a worker process by a new one, which continues after the call that ended the worker process."""
        worker.process.kill()
        self._workers.remove(worker)
        if not worker.ready:
            self.failed_starts.append(why)
            self._forks = False
        elif worker.task:
            self.restarts += 1
            if worker.call:
                self.answers[worker.task][worker.call] = why
            if worker.call or worker.answered:
                self._todo.appendleft(worker.task)
            else:  # The call would also end the next worker process.
                self.problems[f"{name_of(self.ops[worker.task[0]])} {worker.task[1]}"] = why
        if len(self.failed_starts) < self._most_failed_starts:
            self._workers.append(self._new())


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def database() -> list[Any]:
    """Return PyTorch's operators. CUDA is hidden during the import, so that all machines get the same samples, and the process
    can still fork."""
    with patch("torch.cuda.is_available", return_value=False):
        from torch.testing._internal import common_methods_invocations as found
    foreach: list[Any] = [
        op for name, ops in vars(found).items() if name.startswith("foreach_") and name.endswith("_op_db") for op in ops
    ]
    return [*found.op_db, *foreach]


def operators(pattern: str) -> list[Any]:
    """Return the operators whose names match the pattern, or all operators if the pattern is empty."""
    return [op for op in database() if not pattern or re.fullmatch(pattern, name_of(op))]


def start_real() -> None:
    torch.ones(2, device="cuda").sum().item()


def ask(out: Path, seconds: float, processes: int, virtual: str, values: str, only: str) -> Answers:
    """Make all calls on one GPU, and write the results to a file."""
    began = time.monotonic()
    warnings.simplefilter("ignore")
    start = start_real
    if virtual:
        import trace_replay

        trace_replay.start(virtual, values=values, clock="virtual")  # type: ignore[arg-type]
        start = torch.cuda.init
    ops = operators(only)
    gc.freeze()  # `torch.cuda.graph` collects garbage before each capture
    asking = Asking(ops, only, processes, start, began + seconds)

    def save() -> Answers:
        by_op: Answers = {}
        for (number, step), answers in sorted(asking.answers.items()):
            by_op.setdefault(name_of(ops[number]), {})[step] = answers
        found = {
            "torch": torch.__version__,
            "gpu": asking.gpu,
            "values": values if virtual else "",
            "seconds": round(time.monotonic() - began, 1),
            "restarts": asking.restarts,
            "failed_starts": asking.failed_starts,
            "not_finished": [f"{name_of(ops[number])} {step}" for number, step in asking.unfinished()],
            "problems": asking.problems,
            "signatures": asking.signatures,
            "answers": by_op,
        }
        out.write_bytes(gzip.compress(json.dumps(found).encode(), 6))
        return found

    asking.run(save)
    return save()


def load(file: Path) -> Answers:
    """Read a file that `ask` wrote."""
    found: Answers = json.loads(gzip.decompress(file.read_bytes()))
    return found


def summary_of(found: Answers) -> str:
    """Return one line about a file of results."""
    steps = [step for steps in found["answers"].values() for step in steps.values()]
    answers = [answer for step in steps for call, answer in step.items() if not call.endswith(REFUSED_BY)]
    accepted = sum(answer.startswith("ok") for answer in answers)
    failed: list[str] = found["failed_starts"]
    return (
        f"{found['gpu']}, torch {found['torch']}: {len(answers)} calls of {len(found['answers'])} operators in"
        f" {found['seconds']:.0f} s, {accepted} accepted, {found['restarts']} processes replaced,"
        f" {len(found['not_finished'])} tasks not finished, {len(found['problems'])} without samples"
        + "".join(f"; {failed.count(why)} processes could not use the GPU: {why}" for why in sorted(set(failed)))
    )


@dataclass(frozen=True)
class Difference:
    """Describes a call with different results on two GPUs."""

    kind: str
    op: str
    call: str
    gpu: str
    virtual: str


KINDS = (
    "accepted here, refused by the GPU",
    "refused here, accepted by the GPU",
    "NotEmulated",
    "other error type",
    "other text",
    "other result",
    "died here",
)


def kind_of(gpu: str, virtual: str) -> str:
    if virtual.startswith("died"):
        return "died here"
    if "NotEmulated" in virtual:
        return "NotEmulated"
    if virtual.startswith("ok") and gpu.startswith("ok"):
        return "other result"
    if virtual.startswith("ok"):
        return "accepted here, refused by the GPU"
    if gpu.startswith("ok"):
        return "refused here, accepted by the GPU"
    return "other text" if gpu.partition(":")[0] == virtual.partition(":")[0] else "other error type"


def differences(gpu: Answers, virtual: Answers) -> Iterator[Difference]:
    """Yield the calls with different results on the two GPUs. Operators with different samples are left out."""
    for op, steps in gpu["answers"].items():
        if gpu["signatures"].get(op) != virtual["signatures"].get(op):
            continue
        for step, answers in steps.items():
            others = virtual["answers"].get(op, {}).get(step, {})
            for call, answer in answers.items():
                if call.endswith(REFUSED_BY) or answer.startswith("died"):
                    continue
                if (other := others.get(call, answer)) != answer:
                    yield Difference(kind_of(answer, other), op, call, answer, other)


def compare(gpu: Answers, virtual: Answers, kinds: list[str]) -> str:
    """Return the differences as text: counts by kind, then one line for each operator and pair of results."""
    found = list(differences(gpu, virtual))
    shared = [op for op in gpu["answers"] if gpu["signatures"].get(op) == virtual["signatures"].get(op)]
    both = sum(
        call in virtual["answers"].get(op, {}).get(step, {}) and not call.endswith(REFUSED_BY)
        for op in shared
        for step, answers in gpu["answers"][op].items()
        for call in answers
    )
    lines = [f"{both} calls of {len(shared)} operators were answered by both; {len(found)} answers differ", ""]
    counts = Counter((each.kind, each.call.partition(" ")[0]) for each in found)
    questions = sorted({question for _, question in counts})
    for kind in KINDS:
        row = ", ".join(f"{question} {counts[kind, question]}" for question in questions if counts[kind, question])
        lines.append(f"{kind}: {sum(n for (k, _), n in counts.items() if k == kind)} ({row})")
    for kind in kinds or KINDS:
        grouped: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
        for each in found:
            if each.kind == kind:
                question, _, rest = each.call.partition(" ")
                grouped[question, each.op, each.gpu, each.virtual].append(rest)
        lines += ["", f"## {kind}"]
        for (question, op, answer, other), calls in sorted(grouped.items()):
            lines.append(f"{question} {op} [{'; '.join(calls)}]\n    GPU:     {answer}\n    virtual: {other}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("ask", help="ask a GPU, and write its answers")
    asked.add_argument("out", type=Path)
    asked.add_argument("--seconds", type=float, default=90.0, help="write the answers so far after this time")
    asked.add_argument("--processes", type=int, default=max(2, min(12, 3 * (os.cpu_count() or 2) // 4)))
    asked.add_argument("--virtual", default="", metavar="GPU", help="ask the virtual GPU, for example h200")
    asked.add_argument("--values", default="compute", help="values of the virtual GPU: compute, recorded or constant")
    asked.add_argument("--only", default="", metavar="REGEX", help="only operators with matching names")
    compared = commands.add_parser("compare", help="list the different answers")
    compared.add_argument("gpu", type=Path)
    compared.add_argument("virtual", type=Path)
    compared.add_argument("--kind", action="append", default=[], choices=KINDS)
    args = parser.parse_args()
    if args.command == "compare":
        print(compare(load(args.gpu), load(args.virtual), args.kind))
    else:
        found = ask(args.out, args.seconds, args.processes, args.virtual, args.values, args.only)
        print(summary_of(found))
        sys.exit(0 if found["answers"] else 1)


if __name__ == "__main__":
    main()

"""Starts a virtual GPU in the current process, which may be a script, a test or a notebook.

    with trace_replay.gpu("v100", values="compute") as gpu:
        train(steps=20)
    print(gpu.report())

    gpu = trace_replay.start("train.msgpack")
    ...
    gpu.stop()

A process has at most one virtual GPU at a time. After the virtual GPU has stopped, any use of its tensors raises an error.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from trace_replay import unsupported
from trace_replay.packages import our_packages

if TYPE_CHECKING:
    from traces.comparison.comparison_figures import Comparison
    from traces.model.json_facts import Json
    from traces.model.trace import Trace
    from traces.script.configuration import ReplayConfig
    from tui.commands.replay_library import ReplaySource

Values = Literal["recorded", "constant", "compute"]
ClockName = Literal["wall", "virtual", "recorded"]

_BOOTSTRAPPED = "_trace_replayer.state"  # in a process that `trace replay` started, the bootstrap has imported this module


class ReplayReport:
    """Compares a replay with its recording. `print(report)` prints the text of `trace diff`."""

    def __init__(
        self, first: tuple[str, Trace], second: tuple[str, Trace], tolerance: float, *, is_estimate: bool = False
    ) -> None:
        self.recorded, self.replayed = first[1], second[1]
        self._names = first[0], second[0]
        self._tolerance = tolerance
        self._is_estimate = is_estimate
        with our_packages():
            from traces.comparison.compare import compare

            self.comparison: Comparison = compare(self.recorded, self.replayed, tolerance)

    @property
    def is_same_program(self) -> bool | None:
        return self.comparison.verdict.same

    def to_json(self) -> dict[str, Json]:
        """Return the data of the JSON file that `trace replay --report` writes."""
        return dict(self.comparison.to_json())

    def __str__(self) -> str:
        with our_packages():
            if self._is_estimate:
                from tui.commands.replay_library import estimated_text

                return estimated_text(self.replayed, self.comparison)
            from tui.text.diff import diff_text

            return diff_text(self.comparison, *self._names)

    __repr__ = __str__

    def to_html(self) -> str:
        with our_packages():
            from tui.report.page import report_html
            from tui.report.plots import NamedTrace

            named = [NamedTrace(self._names[1], self.replayed)]
            if not self._is_estimate:
                named.insert(0, NamedTrace(self._names[0], self.recorded))
            return report_html(named, self._tolerance)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.to_html())}" style="width:100%;height:640px;border:0"></iframe>'


class InProcessGpu:
    """Represents a virtual GPU in the current process."""

    def __init__(self, source: ReplaySource, folder: Path) -> None:
        self._source = source
        self._folder = folder  # the processes of the replay write their timelines to this folder
        self._process = os.getpid()
        weakref.finalize(self, _remove, folder, self._process)
        self._stopped: Trace | None = None
        self.is_running = True

    @property
    def name(self) -> str:
        return self._source.recorded.devices[0].name

    def timeline(self) -> Trace:
        """Return a trace of the replay so far. Raise TraceError if the script did not use the virtual GPU."""
        if self._stopped is not None:
            return self._stopped
        with our_packages():
            from traces.combining.replayed_ranks import one_replay, timelines_in
            from traces.model.trace import TraceError

            if self.is_running:
                _child().state.STATE.flush()
            processes = timelines_in(self._folder, are_complete=not self.is_running)
            if not processes:
                raise TraceError("the script has not used the virtual GPU, so there is no timeline")
            trace, _ = one_replay(processes, self._process)
        if not self.is_running:
            self._stopped = trace
        return trace

    def report(self, tolerance: float = 0.05) -> ReplayReport:
        replayed = self.timeline()
        with our_packages():
            of = self._source.compared_with(replayed)
        return ReplayReport((of.name, of.recorded), ("this replay", replayed), tolerance, is_estimate=of.is_estimate)

    def compare(self, other: Trace | InProcessGpu | str | os.PathLike[str], tolerance: float = 0.05) -> ReplayReport:
        """Compare this replay with another trace or replay, such as "train.msgpack"."""
        return self.compare_with(other, self.timeline(), tolerance)

    def compare_with(
        self, other: Trace | InProcessGpu | str | os.PathLike[str], replayed: Trace, tolerance: float
    ) -> ReplayReport:
        return ReplayReport(_named_trace(other), ("this replay", replayed), tolerance)

    @property
    def step_time(self) -> float | None:
        """Return the median step time in seconds, or None if no step has ended."""
        with our_packages():
            from traces.figures.summary import summarize

            median_ns = summarize(self.timeline()).step_median_ns
        return None if median_ns is None else median_ns / 1e9

    @property
    def peak_memory(self) -> int:
        """Return the peak of allocated memory in bytes. With several devices, return the highest peak."""
        with our_packages():
            from traces.figures.summary import summarize

            memory = summarize(self.timeline()).memory.values()
        return max((peak.peak_allocated_bytes or 0 for peak in memory), default=0)

    def summary_lines(self) -> list[str]:
        with our_packages():
            from traces.model.trace import TraceError
            from tui.commands.replay_library import host_time_sentences, library_messages
            from tui.formatting import size_text, time_text
            from tui.text.diff import estimate_sentences

            try:
                report = self.report()
            except TraceError as error:
                return [f"{self.name}: {error}."]
            step_time = self.step_time
            step = "no step has ended" if step_time is None else f"{time_text(step_time * 1e9)} per step (median)"
            sentences = host_time_sentences(report.comparison) + estimate_sentences(report.comparison)
            lines = [f"{self.name}: {step}, memory peak {size_text(self.peak_memory)}.", *sentences]
            return [*lines, *(f"{text[0].upper()}{text[1:]}." for text in library_messages(self.timeline()))]

    def on_refusal(self, listener: Callable[[str], object]) -> None:
        """Call `listener` with an error message whenever the script makes an unsupported CUDA call."""
        with our_packages():
            _child().watch_refusals(listener)

    def on_wait(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` whenever the script waits for the GPU, in the thread that waits."""
        with our_packages():
            _child().watch_waits(listener)

    def hide_own_frames(self, error: BaseException) -> None:
        """Remove the virtual GPU's functions from the error's traceback."""
        with our_packages():
            _child().hide_own_frames(error)

    def now_ns(self) -> int | None:
        """Return the time of the virtual GPU's clock, or None before the first use of the GPU."""
        with our_packages():
            now_ns: int | None = _child().now_ns()
            return now_ns

    def values_not_computed(self) -> int:
        with our_packages():
            return int(_child().values_not_computed())

    def stop(self) -> None:
        """Stop the virtual GPU, and undo its changes to torch. Further calls do nothing."""
        global _running
        if not self.is_running:
            return
        self.is_running, _running = False, None
        atexit.unregister(self.stop)
        with our_packages():
            _child().stop_here()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.hide_own_frames(error)
        self.stop()

    def __repr__(self) -> str:
        return f"<virtual {self.name}, {'running' if self.is_running else 'stopped'}>"


_running: InProcessGpu | None = None


def running() -> InProcessGpu | None:
    return _running


def start(
    what: str | os.PathLike[str],
    *,
    values: Values = "recorded",
    clock: ClockName = "wall",
    gpus: int = 0,
    memory: str | Sequence[str] = "",
    speed: float = 1.0,
    strict: bool = False,
) -> InProcessGpu:
    """Start a virtual GPU in the current process.

    The argument `what` is a recording's path, a name listed by `trace library` ("v100/resnet50"), or a GPU's name ("a100"). If
    you pass a GPU's name, the step times come from published measurements of your model. If there are none, the step times are
    estimated. All other arguments work like the options of `trace replay`. Raises ValueError for an invalid argument, and
    TraceError for an unknown recording or GPU.
    """
    global _running
    _check(values, clock, gpus, speed)
    if (reason := unsupported(sys.platform)) is not None:
        raise RuntimeError(reason)
    if _running is not None:
        raise RuntimeError(f"{_running!r} already runs in this process; call its `stop()` first")
    if getattr(sys.modules.get(_BOOTSTRAPPED), "STATE", None) is not None and sys.modules[_BOOTSTRAPPED].STATE.make is not None:
        raise RuntimeError("this process already has a virtual GPU: `trace replay` or another process started it")
    folder = Path(tempfile.mkdtemp(prefix="trace-replay-"))
    with our_packages(), ExitStack() as unless_started:
        unless_started.callback(_remove, folder, os.getpid())
        from traces.model.typed_json import to_json
        from traces.script.configuration import ReplayConfig
        from traces.script.launch import bootstrap_variables, write_session
        from traces.script.patching import patch_item

        config = ReplayConfig(strict=strict, values=values, clock=clock, speed=speed, gpus=gpus)
        source, session = _session(os.fspath(what), folder, config, memory)
        child = _child()
        write_session(folder, {"replayer": session})
        unless_started.callback(child.stop_here)
        for name, value in bootstrap_variables(os.environ, folder).items():
            patch_item(os.environ, name, value)
        child.start_here(to_json(session))
        unless_started.pop_all()
    _running = InProcessGpu(source, folder)
    atexit.register(_running.stop)
    return _running


def gpu(what: str | os.PathLike[str], **options: Any) -> InProcessGpu:
    """Start a virtual GPU that stops at the end of a block. The arguments are those of `start`.

        with trace_replay.gpu("v100", values="compute") as gpu: ...
    """
    return start(what, **options)


def _check(values: Values, clock: ClockName, gpus: int, speed: float) -> None:
    known: dict[str, tuple[str, Any]] = {"values": (values, Values), "clock": (clock, ClockName)}
    for name, (word, words) in known.items():
        if word not in get_args(words):
            raise ValueError(f"{name}={word!r}: use {', '.join(map(repr, get_args(words)))}")
    for name, given, least, most in (("gpus", gpus, 0, 64), ("speed", speed, 0.001, 1000)):
        if not least <= given <= most:
            raise ValueError(f"{name}={given!r}: use a number from {least} to {most}")


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child must not remove the folder of its parent
        shutil.rmtree(folder, ignore_errors=True)


def _child() -> Any:
    return importlib.import_module("replayer.child")


def _session(what: str, folder: Path, config: ReplayConfig, memory: str | Sequence[str]) -> tuple[ReplaySource, Any]:
    from traces.library import find
    from traces.model.trace import TraceLibraryError
    from traces.names.cards import unknown_gpu
    from traces.script.configuration import ReplaySession
    from tui.commands.replay import config_for
    from tui.commands.replay_library import is_gpu_name, source_of

    by_name = is_gpu_name(what)
    if not by_name and what.isalnum():  # `what` may be the name of a GPU with a typing error
        try:
            find(what)
        except TraceLibraryError:
            raise TraceLibraryError(f"{what}: no such recording, and {unknown_gpu(what)}") from None
    names = ("", what) if by_name else (what, "")
    source = source_of(*names, estimate=by_name, strict=config.strict, gpus=config.gpus)
    config = config_for(source.recorded, config, memory if isinstance(memory, str) else ",".join(memory))
    launcher = 0  # `trace replay` did not start this process
    return source, ReplaySession(source.file_in(folder), folder, launcher, config=config, cells=source.choice)


def _named_trace(other: Trace | InProcessGpu | str | os.PathLike[str]) -> tuple[str, Trace]:
    if isinstance(other, InProcessGpu):
        return repr(other), other.timeline()
    if isinstance(other, str | os.PathLike):
        with our_packages():
            from tui.trace_names import load_trace

            return os.fspath(other), load_trace(os.fspath(other))
    return "A", other

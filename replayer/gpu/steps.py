"""Tracks the script's phases, module calls and steps.

    steps.enter_phase("backward")
    steps.leave_phase("backward")
    steps.optimizer_stepped(True)       # a training step has ended

Note [Numbered steps]
    Autograd's sequence numbers show to which module an op of the backward pass belongs. Reading a sequence number takes 0.2 us
    per op. The numbers are therefore only read in the first training steps, and copied to later steps
    (traces/combining/replayed_ranks.py).

Note [The host's time in a library call]
    Published phase times already include the host's time for launching the phase's ops. A virtual clock is therefore paused
    while this machine runs the same calls (copies, the model, zero_grad, backward, step). The wall clock cannot be paused, so a
    slow host makes a phase longer.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from replayer.gpu.launches import ScriptLaunches
from replayer.gpu.ranks import RankOperations
from replayer.timing.host_threads import HostThread
from replayer.timing.timeline.host_ranges import NAMED
from traces.analyses.modules import ModuleNames
from traces.model.layouts import Shape
from traces.script.phase_rule import PLAIN
from traces.script.script_hooks import SCRIPT_CALLS, ModuleMarks
from traces.script.workload_observer import WorkloadObserver

_OF_LIBRARY = frozenset({"zero_grad", "backward", "optimizer"})

# see Note [Numbered steps]
_NUMBERED_STEPS = 3

StepEnded = Callable[[int, int], None]


class ScriptSteps:
    def __init__(self, launches: ScriptLaunches, ranks: RankOperations, step_ended: StepEnded | None = None) -> None:
        self._devices = launches.current.devices
        self._launches = launches
        self._ranks = ranks
        self._clock = launches.clock
        self._tracker = launches.simulator.tracker
        self._scheduler = launches.simulator.scheduler
        self._timeline = launches.simulator.timeline
        self._library = launches.simulator.recording.library_pace
        self._step_ended = step_ended
        self._has_warmed_up = self._froze = False
        self._in_library_call = False  # True if the library provides the time of the current module call
        self._trained = self._ended = 0
        self._module_names: dict[int, int] = {}  # ids of existing modules, and their names as in `HostRanges`
        self._names = ModuleNames()
        # phases whose times the library provides
        self._of_library = _OF_LIBRARY if self._library is not None else frozenset()
        if self._library is not None:
            self.workload.on_every_call = self._watch_call

    def _moves_on(self, thread: HostThread, call: Callable[..., object], *args: object) -> bool:
        for capture in reversed(self._launches.captures):
            if thread is capture.thread:
                capture.add_call(call, *args)
                return False
        call(thread, *args)
        return True

    # --- phases

    def enter_phase(self, name: str) -> None:
        with self._launches.looking as thread:
            self._launches.stop_watching()
            if self._moves_on(thread, self._tracker.enter, name):
                self._look_at_steps()
                if name in self._of_library:
                    self._clock.pause()

    def leave_phase(self, name: str, error: BaseException | None = None) -> None:
        with self._launches.looking as thread:
            if name in self._of_library:
                self._clock.resume()
            self._moves_on(thread, self._tracker.leave, name, error is not None)
            if name == "backward" and SCRIPT_CALLS.now.built_graph:
                self._launches.watch_nodes(torch._C._autograd._get_sequence_nr, self._forward_begins)

    def _forward_begins(self) -> None:
        # see Note [After a backward pass] in phase_rule.py
        with self._launches.looking as thread:
            self._moves_on(thread, self._tracker.forward_begins)

    def autograd_recorded(self, uses_gradients: bool) -> None:
        # only compiled functions need this call; for other ops, `watch_nodes` has already detected the autograd nodes
        if uses_gradients:
            self._forward_begins()

    def region_called(self) -> None:
        with self._launches.looking as thread:
            if self._tracker.begins_segment[PLAIN] and not self._launches.captures:
                self._tracker.op(thread, PLAIN, self._clock.now_ns())

    def loss_called(self) -> None:
        with self._launches.looking as thread:
            self._moves_on(thread, self._tracker.loss_called)

    def optimizer_stepped(self, is_first: bool) -> None:
        with self._launches.looking as thread:
            self._freeze_objects()  # do this before the step ends, because it is slow
            if self._moves_on(thread, self._tracker.optimizer_stepped, is_first):
                self._look_at_steps()

    def loader_exhausted(self) -> None:
        with self._launches.looking as thread:
            self._tracker.script.loader_exhausted(thread)

    # --- modules

    @property
    def workload(self) -> WorkloadObserver:
        return self._tracker.script.workload

    def _watch_call(
        self, module: object, inputs: Iterable[tuple[Shape, str]], autocast: str | None, grad_enabled: bool
    ) -> Callable[[], None]:
        # see Note [The host's time in a library call]
        library = self._library
        assert library is not None
        with self._launches.looking:
            library.watch(module, inputs, autocast, grad_enabled)
            self._in_library_call = library.has_next_time
            memory = self._devices[max(self._scheduler.home, 0)].memory
            memory.limit_to(library.memory_limit(memory.usage.peak_allocated_bytes))
            memory.returns_pieces = library.is_known_to_fit
        return self._library_call_returned

    def autocast_entered(self, dtype: str) -> None:
        """If a model's `forward` enters autocast, search the library for the model's times with autocast."""
        if self._library is not None:
            with self._launches.looking:
                self._library.autocast_entered(dtype)

    def _library_call_returned(self) -> None:
        assert self._library is not None
        self._library.returned()
        if self._in_library_call:
            self._in_library_call = False
            self._clock.resume()

    def module_called(self, number: int, grad_enabled: bool) -> None:
        if self._launches.takes_turns:
            return  # the module is a replica of nn.DataParallel
        with self._launches.looking as thread:
            self._launches.stop_watching()
            if self._moves_on(thread, self._tracker.module_called, number, grad_enabled):
                self._look_at_steps()
                if self._in_library_call:
                    self._clock.pause()

    def module_returned(self) -> None:
        self._tracker.script.module_returned()

    def module_marks(self, module: object) -> ModuleMarks | None:
        if getattr(module, "_is_replica", False):
            return None
        thread, ranges = self._launches.current.thread(), self._timeline.ranges
        ranges.under_way += 1
        if not ranges.begun_ns:
            ranges.begun_ns = thread.host_ns
        return ranges.of_thread(thread.row).append, self._launches.pending, self._module_names.get, self._name_module

    @contextmanager
    def open_ranges(self, *names: str) -> Iterator[None]:
        thread, ranges = self._launches.current.thread(), self._timeline.ranges
        ranges.under_way += 1
        ranges.begun_ns = ranges.begun_ns or thread.host_ns
        note, pending = ranges.of_thread(thread.row).append, self._launches.pending
        with self._launches.lock:
            numbers = [(self._timeline.strings.add(name) + 1) * NAMED for name in names]
        for number in numbers:
            note(number + len(pending))
        try:
            yield
        finally:
            for _ in names:
                note(~len(pending))
            ranges.under_way -= 1

    def modules_left(self) -> None:
        self._timeline.ranges.under_way -= 1

    def _name_module(self, module: object) -> int:
        with self._launches.lock:
            return self._names.keep(module, self._module_names, lambda name: (self._timeline.strings.add(name) + 1) * NAMED)

    # --- steps

    def _look_at_steps(self) -> None:
        tracker = self._tracker
        if tracker.trained != self._trained:
            self._trained = tracker.trained
            if self._trained >= _NUMBERED_STEPS:
                self._launches.stop_numbering()
            for device in self._devices:
                device.allocator.end_step()
        if self._step_ended is not None and tracker.number != self._ended:
            self._ended = tracker.number
            self._step_ended(tracker.trained, tracker.number)
        if tracker.number:
            self._freeze_objects()

    def _freeze_objects(self) -> None:
        """Exclude all current objects from garbage collection."""
        if self._has_warmed_up:
            return
        self._has_warmed_up = True
        # `gc.freeze` excludes objects from garbage collection. Forked ranks share the memory of these objects. `gc.unfreeze`
        # would write to this memory, and each rank would then need its own copy.
        if "_trace_ranks" in sys.modules or gc.get_freeze_count():
            return
        gc.collect()
        gc.freeze()
        self._froze = True

    @contextmanager
    def gc_unfrozen(self) -> Iterator[None]:
        if self._froze:
            gc.unfreeze()
        yield
        if self._froze:
            gc.freeze()

    def script_ended(self) -> None:
        """End the last training step, because the script has ended. If a different thread runs the training steps, leave the
        step open, because that thread may still be running."""
        with self._launches.looking as thread:
            is_of_this_thread = self._tracker.script.thread is thread
        if is_of_this_thread:
            self.stop()

    def stop(self) -> None:
        self._ranks.finish(wait=False)
        with self._launches.looking as thread:
            self._tracker.stop(thread)
            if self._froze:
                gc.unfreeze()  # a leak detector would report objects that `gc.freeze` has excluded from collection

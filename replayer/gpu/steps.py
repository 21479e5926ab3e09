"""The script's phases, module calls and steps.

    steps.enter_phase("backward")
    steps.leave_phase("backward")
    steps.optimizer_stepped(True)       # a training step has ended

`ScriptHooks` (traces/script/script_hooks.py) calls this class and the recorder in the same way.

Note [Numbered steps]
    Autograd's sequence numbers show which op of the backward pass belongs to which module. Reading them takes 0.2 us per op,
    which is too slow for every step. They are read in the first training steps only and then copied to steps with the same
    ops (traces/format/autograd_numbers.py).

Note [The host's time in a cell]
    The library's cells contain phase times, measured from when the host entered the phase until the device was done. They
    include the launch time of that host. This machine's time for the same calls (copies, the model's, zero_grad, backward,
    step) must not be added, so a virtual clock is paused in them. The wall clock cannot be paused: a host that is slower
    than the phase makes the phase longer.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from replayer.gpu.device import VirtualDevice
from replayer.gpu.launches import ScriptLaunches
from replayer.gpu.ranks import RankOperations
from replayer.timing.host_threads import HostThread
from replayer.timing.timeline.host_ranges import NAMED
from traces.analyses.modules import ModuleNames
from traces.model.layouts import Shape
from traces.script.script_hooks import ModuleMarks
from traces.script.workload_observer import WorkloadObserver

# Phases entered by name that have times in the library's cells; see Note [The host's time in a cell].
_OF_CELLS = frozenset({"zero_grad", "backward", "optimizer"})

# Training steps in which autograd's numbers are read; the first may differ from the others (lazy states, warm-up).
_NUMBERED_STEPS = 3

StepEnded = Callable[[int, int], None]


class ScriptSteps:
    """Reports to the step tracker. Calls `step_ended` with the number of finished training steps and of all finished steps."""

    def __init__(
        self, devices: list[VirtualDevice], launches: ScriptLaunches, ranks: RankOperations, step_ended: StepEnded | None = None
    ) -> None:
        self._devices = devices
        self._launches = launches
        self._ranks = ranks
        self._clock = launches.clock
        self._tracker = launches.simulator.tracker
        self._scheduler = launches.simulator.scheduler
        self._timeline = launches.simulator.timeline
        self._cells = launches.simulator.recording.cells
        self._step_ended = step_ended
        self._has_settled_in = self._froze = False
        self._in_cell = False  # the current module call takes its time from a cell
        self._trained = self._ended = 0  # training steps so far, and training plus evaluation steps
        self._module_names: dict[int, int] = {}  # of living modules, by identity, in the form that `HostRanges` takes
        self._names = ModuleNames()
        if self._cells is not None:
            self.workload.on_every_call = self._watch_call

    def _moves_on(self, thread: HostThread, call: Callable[..., None], *args: object) -> bool:
        """Call the tracker and return True. During a graph capture, store the call for the graph's replays and return False."""
        capture = self._launches.capture
        if capture is not None and thread is capture.thread:
            capture.note(call, *args)
            return False
        call(thread, *args)
        return True

    # --- phases

    def enter_phase(self, name: str) -> None:
        with self._launches.looking as thread:
            if self._moves_on(thread, self._tracker.enter, name):
                self._look_at_steps()
                if name in _OF_CELLS and self._cells is not None:
                    self._clock.pause()

    def leave_phase(self, name: str) -> None:
        with self._launches.looking as thread:
            if name in _OF_CELLS and self._cells is not None:
                self._clock.resume()
            self._moves_on(thread, self._tracker.leave, name)

    def loss_called(self) -> None:
        """The script calls a loss that is recognised by its own name, not by the names of its ops."""
        with self._launches.looking as thread:
            self._moves_on(thread, self._tracker.loss_called)

    def optimizer_stepped(self, is_first: bool) -> None:
        """An optimizer's step() has returned. The first optimizer's call ends a step."""
        with self._launches.looking as thread:
            if self._moves_on(thread, self._tracker.optimizer_stepped, is_first):
                self._look_at_steps()

    def loader_exhausted(self) -> None:
        """The loader was exhausted and returned no batch."""
        with self._launches.looking as thread:
            self._tracker.script.loader_exhausted(thread)

    # --- modules

    @property
    def workload(self) -> WorkloadObserver:
        """Collects the script's workload signature until it is complete."""
        return self._tracker.script.workload

    def _watch_call(
        self, module: object, inputs: Iterable[tuple[Shape, str]], autocast: str | None, grad_enabled: bool
    ) -> Callable[[], None]:
        """Look up the call that begins in the library's cells, for the device that the script works on. Returns a function to
        call at the end. See Note [The host's time in a cell]."""
        cells = self._cells
        assert cells is not None
        with self._launches.looking:
            cells.watch(module, inputs, autocast, grad_enabled)
            self._in_cell = cells.tells_call
            memory = self._devices[max(self._scheduler.home, 0)].memory
            memory.limit_to(cells.memory_limit(memory.usage.peak_allocated_bytes))
            memory.returns_pieces = cells.is_known_to_fit
        return self._cell_returned

    def _cell_returned(self) -> None:
        if self._in_cell:
            self._in_cell = False
            self._clock.resume()

    def module_called(self, module: object, grad_enabled: bool) -> None:
        """The script calls an outermost module."""
        with self._launches.looking as thread:
            if self._moves_on(thread, self._tracker.module_called, id(module), grad_enabled):
                self._look_at_steps()
                if self._in_cell:
                    self._clock.pause()

    def module_returned(self) -> None:
        """The outermost module has returned. Its ops may still be pending."""
        self._tracker.script.module_returned()

    def module_marks(self, module: object) -> ModuleMarks | None:
        """The list of this thread's module-call marks during an outermost call. None for a replica, because replicas are new in
        each step."""
        if getattr(module, "_is_replica", False):
            return None
        thread, ranges = self._launches.current.thread(), self._timeline.ranges
        ranges.under_way += 1
        if not ranges.begun_ns:
            ranges.begun_ns = thread.host_ns
        return ranges.of_thread(thread.row).append, self._launches.pending, self._module_names.get, self._name_module

    def modules_left(self) -> None:
        """The outermost call has returned."""
        self._timeline.ranges.under_way -= 1

    def _name_module(self, module: object) -> int:
        with self._launches.lock:
            return self._names.keep(module, self._module_names, lambda name: (self._timeline.strings.add(name) + 1) * NAMED)

    # --- steps

    def _look_at_steps(self) -> None:
        """Handle the end of a step, if one has ended. After a training step, allocations are expected to repeat.

        After the first step, the hundred thousand objects of the recording and the plans stay alive. They are frozen, so that
        full garbage collections in the middle of a step do not visit them."""
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
        if self._has_settled_in or not tracker.number:
            return
        self._has_settled_in = True
        if gc.get_freeze_count():  # frozen before this rank was forked; thawing would write to memory that all ranks share
            return
        gc.collect()
        gc.freeze()
        self._froze = True

    @contextmanager
    def thawed(self) -> Iterator[None]:
        """Inside this context, collections visit every object. The remaining objects are frozen again afterwards."""
        if self._froze:
            gc.unfreeze()
        yield
        if self._froze:
            gc.freeze()

    def stop(self) -> None:
        """The script has ended."""
        self._ranks.settle(wait=False)
        with self._launches.looking as thread:
            self._tracker.stop(thread)
            if self._froze:
                gc.unfreeze()  # otherwise objects that the interpreter frees at exit would be reported as leaks

"""What the script does beside launching: its phases, calls of modules, and steps.

    steps.enter_phase("backward")
    steps.leave_phase("backward")
    steps.optimizer_stepped(True)       # a training step has ended

`ScriptHooks` (traces/script/script_hooks.py) calls this as it calls the recorder.

Note [Numbered steps]
    Which op of the backward pass belongs to which module is known by autograd's numbers. Asking for them takes 0.2 us per op,
    too much for every step, and steps repeat. So they are noted in the first training steps, and steps with the same ops get
    theirs afterwards (traces/format/autograd_numbers.py).

Note [The host's time in a cell]
    The library's cells hold times of phases, measured from when the host entered the phase until the device was done. They
    contain what that host took to launch. What this machine takes for the same calls (copies, the model's, zero_grad, backward,
    step) does not count beside it: on a virtual clock time stands still in them. On the wall clock it cannot, and a host that
    takes longer than the phase makes it longer.
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

# Phases entered by name whose time a cell of the library holds; see Note [The host's time in a cell].
_OF_CELLS = frozenset({"zero_grad", "backward", "optimizer"})

# Training steps in which autograd's numbers are noted; the first may be unlike the others (lazy states, warm-up).
_NUMBERED_STEPS = 3

StepEnded = Callable[[int, int], None]


class ScriptSteps:
    """Reports to the step tracker. `step_ended` is called with the numbers of training steps and of all steps that ended."""

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
        self._in_cell = False  # a cell says what the module call under way takes
        self._trained = self._ended = 0  # training steps so far, and steps of both kinds
        self._module_names: dict[int, int] = {}  # of living modules, by identity: as `HostRanges` takes them
        self._names = ModuleNames()
        if self._cells is not None:
            self.workload.on_every_call = self._watch_call

    def _moves_on(self, thread: HostThread, call: Callable[..., None], *args: object) -> bool:
        """Call the tracker, or note that for each replay of the graph that the script captures; whether it was called."""
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
        """The script calls a loss that is known by its own name only, not by the names of the ops it is made of."""
        with self._launches.looking as thread:
            self._moves_on(thread, self._tracker.loss_called)

    def optimizer_stepped(self, is_first: bool) -> None:
        """An optimizer's step() has returned; that of the first one ends a step."""
        with self._launches.looking as thread:
            if self._moves_on(thread, self._tracker.optimizer_stepped, is_first):
                self._look_at_steps()

    def loader_exhausted(self) -> None:
        """The loader that the script has just left had no batch for it."""
        with self._launches.looking as thread:
            self._tracker.script.loader_exhausted(thread)

    # --- modules

    @property
    def workload(self) -> WorkloadObserver:
        """Notes what the script trains, until it is known."""
        return self._tracker.script.workload

    def _watch_call(
        self, module: object, inputs: Iterable[tuple[Shape, str]], autocast: str | None, grad_enabled: bool
    ) -> Callable[[], None]:
        """Ask the library's cells about the call that begins, on the device that the script works on. Returns a function to
        call at its end. See Note [The host's time in a cell]."""
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
        """The script calls a module, not within another one's call."""
        with self._launches.looking as thread:
            if self._moves_on(thread, self._tracker.module_called, id(module), grad_enabled):
                self._look_at_steps()
                if self._in_cell:
                    self._clock.pause()

    def module_returned(self) -> None:
        """That module has returned. The ops called in it need not be played for that."""
        self._tracker.script.module_returned()

    def module_marks(self, module: object) -> ModuleMarks | None:
        """Where this thread notes calls of modules while an outermost one is under way. None for a replica: replicas are made
        anew in each step."""
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
        """A step may have ended. After a training step allocations are expected to repeat themselves.

        After the first step, the hundred thousand objects of recording and plans stay alive: full collections in the middle
        of a step need not visit them again and again."""
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
        if gc.get_freeze_count():  # by the process that forked this rank: thawing would write to memory that all ranks share
            return
        gc.collect()
        gc.freeze()
        self._froze = True

    @contextmanager
    def thawed(self) -> Iterator[None]:
        """Meanwhile collections visit every object; the objects that are left are frozen again afterwards."""
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
                gc.unfreeze()  # or what the interpreter frees at its end would count as leaked

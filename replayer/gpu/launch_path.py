"""Chooses the function that stores kernel launches.

    path.launch_by(caller, signature)
    with path.kernels_off():                        # launches of this thread are dropped
        ...
    path.watch_nodes(next_node, forward_begins)     # calls `forward_begins` before the next launch with a new autograd node
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from replayer.op_signature import OpSignature
from replayer.timing.host_threads import Caller

Launch = Callable[[Caller, OpSignature], None]


class NodeWatch(NamedTuple):
    """Stores a callback for a thread's next autograd node."""

    thread: int
    next_node: Callable[[], int]  # returns the number of the calling thread's next node
    before: int
    found: Callable[[], None]


class LaunchPath:
    """Stores the function `launch_by`, which the dispatcher calls for each launch."""

    def __init__(self, launch: Launch) -> None:
        self.lock = threading.RLock()
        self.launch_by = self._launch_with_kernels = launch
        self._threads_with_kernels_off: list[int] = []  # threads inside `kernels_off`
        self._watch: NodeWatch | None = None

    def watch_nodes(self, next_node: Callable[[], int], found: Callable[[], None]) -> None:
        """Call `found` once, at this thread's first launch after `next_node` has changed."""
        self._watch = NodeWatch(threading.get_ident(), next_node, next_node(), found)
        self.set_launch(self._launch_with_kernels)

    def stop_watching(self) -> None:
        if self._watch is not None and self._watch.thread == threading.get_ident():
            self._watch = None
            self.set_launch(self._launch_with_kernels)

    def set_launch(self, launch: Launch) -> None:
        with self.lock:
            self._launch_with_kernels = launch
            self.launch_by = self._launch_unless_kernels_off if self._threads_with_kernels_off else launch
            if self._watch is not None:
                self.launch_by = self._launch_watched

    def _launch_watched(self, caller: Caller, signature: OpSignature) -> None:
        watch = self._watch
        if watch is not None and threading.get_ident() == watch.thread and watch.next_node() != watch.before:
            self.stop_watching()
            watch.found()
        self._launch_unless_kernels_off(caller, signature)

    def _launch_unless_kernels_off(self, caller: Caller, signature: OpSignature) -> None:
        if threading.get_ident() not in self._threads_with_kernels_off:
            self._launch_with_kernels(caller, signature)

    @contextmanager
    def kernels_off(self) -> Iterator[None]:
        """Disable the calling thread's kernel launches in the `with` block."""
        me = threading.get_ident()
        self._threads_with_kernels_off.append(me)
        self.set_launch(self._launch_with_kernels)
        try:
            yield
        finally:
            self._threads_with_kernels_off.remove(me)
            self.set_launch(self._launch_with_kernels)

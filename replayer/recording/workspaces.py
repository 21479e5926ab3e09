"""Memory that an op takes for itself and gives back before it returns: cuDNN's and cuBLAS's workspaces, from the recording.

Shapes cannot tell them, for they depend on which algorithm the library chose; but a recording with memory events shows them.
An allocation in a recorded op's window that is freed in the same window is not one of its results.

    workspaces = Workspaces.of(trace, recording)
    workspaces.of_op(signature, recording.keys(signature))     # ((), (56623104, -56623104)): after the op's first output

A `WorkspaceSequence` says what to allocate (positive) and free (negative, the latest of that size) before the op's first
output, after it, after the second... so that blocks are handed out in the recorded order.

Note [Block sizes are not requests]
    Recordings hold the sizes of blocks; up to 1 MiB of a large one may be a tail that was not split off. The least size that
    calls of one kind were given is therefore taken for what they asked for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replayer.memory.caching_allocator import OutOfMemory
from replayer.memory.deferred import AllocationHandle
from replayer.op_signature import MatchKeys, OpSignature
from traces.equivalents import canonical_op
from traces.model import Column, HostKind, MemoryEvents, Trace, parse_shapes

if TYPE_CHECKING:
    from replayer.gpu import VirtualDevice
    from replayer.recording.recorded_run import RecordedRun

WorkspaceSequence = tuple[tuple[int, ...], ...]


class Workspaces:
    """The programs of one recording, by the keys under which ops are matched."""

    def __init__(self) -> None:
        self._exact: dict[str, WorkspaceSequence] = {}
        self._equivalent: dict[str, WorkspaceSequence] = {}

    @classmethod
    def of(cls, trace: Trace, recording: RecordedRun, rank: int) -> Workspaces:
        """Read off the memory events of all devices of a rank; without any there are no workspaces."""
        made = cls()
        exact: dict[str, list[WorkspaceSequence]] = defaultdict(list)
        equivalent: dict[str, list[WorkspaceSequence]] = defaultdict(list)
        strings = trace.strings
        for (name, shapes, dtypes, outermost), programs in _programs(trace, rank).items():
            op, dtype = strings[name], strings[dtypes].partition(";")[0] if dtypes >= 0 else ""
            keys = recording.keys_of(op, parse_shapes(strings[shapes]) if shapes >= 0 else (), dtype)
            exact[keys.exact] += programs
            if outermost:
                equivalent[keys.equivalent] += programs
        if recording.has_shapes:  # without shapes all calls of an op look alike
            made._exact = {key: _usual(of_key) for key, of_key in exact.items()}  # () too: such a call is known to need none
            made._equivalent = {key: program for key, of_key in equivalent.items() if (program := _usual(of_key))}
        return made

    def of_op(self, keys: MatchKeys) -> WorkspaceSequence:
        """What an op with these keys takes for itself; () if nothing or unknown."""
        program = self._exact.get(keys.exact)
        return self._equivalent.get(keys.equivalent, ()) if program is None else program


class ScratchScope:
    """The workspaces of one call. `after_output` is called before the first output and after each."""

    __slots__ = ("_allocator", "_at", "_device", "_open", "_program", "_site", "_stream")

    def __init__(self, device: VirtualDevice, stream: int, signature: OpSignature, program: WorkspaceSequence) -> None:
        self._device = device
        self._allocator = device.allocator
        self._stream = stream
        self._site = signature
        self._program = program
        self._at = 0
        self._open: list[AllocationHandle] = []

    def after_output(self) -> None:
        """Go on to what lies between this output and the next. Raises OutOfMemory, but not for a convolution's."""
        at = self._at
        if at < len(self._program):
            self._at = at + 1
            if sizes := self._program[at]:
                self._do(sizes)

    def end(self) -> None:
        """Do the rest: the recorded op made more outputs than this one."""
        for sizes in self._program[self._at :]:
            self._do(sizes)

    def abandon(self) -> None:
        """Give back what is open, also if the call failed."""
        while self._open:
            self._allocator.free(self._open.pop())

    def _do(self, sizes: tuple[int, ...]) -> None:
        for size_bytes in sizes:
            if size_bytes > 0:
                ticket = _taken(self._device, self._stream, self._site, size_bytes)
                if ticket is not None:
                    self._open.append(ticket)
                continue
            for i in range(len(self._open) - 1, -1, -1):
                if self._open[i].size_bytes == -size_bytes:
                    self._allocator.free(self._open.pop(i))
                    break


def use_scratch(device: VirtualDevice, stream: int, signature: OpSignature, size_bytes: int) -> None:
    """Take memory and give it back before anything else is taken. Raises OutOfMemory, but not for a convolution's."""
    ticket = _taken(device, stream, signature, size_bytes)
    if ticket is not None:
        device.allocator.free(ticket)


def _taken(device: VirtualDevice, stream: int, signature: OpSignature, size_bytes: int) -> AllocationHandle | None:
    """Memory for an op's own use; None where a convolution finds no room.

    cuDNN's callers take an algorithm that needs less then (ATen/native/cudnn/Conv_v8.cpp). Raises OutOfMemory for other ops.
    """
    try:
        return device.allocator.malloc(size_bytes, stream)
    except OutOfMemory:
        if not canonical_op(signature.op).startswith("convolution"):
            raise
        device.memory.excuse_oom()
        return None


class _Call(NamedTuple):
    """A kind of recorded call: strings of the trace. `outermost`: not within the same op under another name."""

    name: int
    shapes: int
    dtypes: int
    outermost: bool


def _programs(trace: Trace, rank: int) -> dict[_Call, list[WorkspaceSequence]]:
    """The program of every recorded op that allocated anything, by kind of call."""
    host = trace.host
    parent, is_op = host.parent.tolist(), (host.kind == HostKind.OP).tolist()
    name, shapes, dtypes = host.name.tolist(), host.shapes.tolist(), host.dtypes.tolist()
    ends_ns = host.end_ns.tolist()
    texts = {i: trace.strings[i] for i in set(name)}
    canonical = {i: canonical_op(text) for i, text in texts.items() if "::" in text and not text.startswith("autograd::")}
    ranks = np.array([device.rank for device in trace.devices] or [0])
    found: dict[_Call, list[WorkspaceSequence]] = defaultdict(list)
    events = trace.memory.take((trace.memory.device >= 0) & (ranks[trace.memory.device] == rank))
    for device in np.unique(events.device):
        of_device = events.take(events.device == device)
        for thread in np.unique(of_device.thread[of_device.thread >= 0]):
            here = of_device.take(of_device.thread == thread)
            here = here.take(np.argsort(here.time_ns, kind="stable"))
            sizes, times_ns = here.bytes.tolist(), here.time_ns.tolist()
            inside: dict[int, list[int]] = defaultdict(list)
            within: set[int] = set()  # rows inside of a call that is the same op under another name
            for event, row in enumerate(_innermost(trace, int(thread), here)):
                below: list[int] = []
                while row >= 0:
                    if is_op[row] and name[row] in canonical:
                        if sizes[event] > 0 or times_ns[event] < ends_ns[row]:
                            inside[row].append(event)  # a free at the very end is that of a result which nobody kept
                        within.update(inner for inner in below if canonical[name[inner]] == canonical[name[row]])
                        below.append(row)
                    row = parent[row]
            for row, indices in inside.items():
                call = _Call(name[row], shapes[row], dtypes[row], row not in within)
                found[call].append(_program(here, indices))
    return found


def _innermost(trace: Trace, thread: int, events: MemoryEvents) -> list[int]:
    """For each event of a thread the innermost host span around it, or NONE."""
    host = trace.host
    rows = np.flatnonzero(host.thread == thread)
    at = np.searchsorted(host.start_ns[rows], events.time_ns, side="right") - 1
    found: Column = np.where(at >= 0, rows[np.maximum(at, 0)] if len(rows) else -1, -1)
    while True:
        over = (found >= 0) & (host.end_ns[np.maximum(found, 0)] < events.time_ns)
        if not over.any():
            return [int(row) for row in found]
        found = np.where(over, host.parent[np.maximum(found, 0)], found)


def _program(events: MemoryEvents, indices: Iterable[int]) -> WorkspaceSequence:
    """What was allocated and freed again within one call, split at its other allocations."""
    chosen = list(indices)
    sizes = events.bytes[chosen].tolist()
    addresses = events.address[chosen].tolist()
    partner: dict[int, int] = {}
    for i, size in enumerate(sizes):
        if size < 0:
            for j in range(i - 1, -1, -1):
                if j not in partner and sizes[j] == -size and addresses[j] == addresses[i]:
                    partner[i], partner[j] = j, i
                    break
    program: list[list[int]] = [[]]
    for i, size in enumerate(sizes):
        if i in partner:
            program[-1].append(size)
        elif size > 0:
            program.append([])
    while program and not program[-1]:
        program.pop()
    return tuple(map(tuple, program))


def _usual(programs: list[WorkspaceSequence]) -> WorkspaceSequence:
    """The most frequent form of a call, with the least sizes seen of it; see Note [Block sizes are not requests]."""
    forms = Counter(_form(program) for program in programs)
    form = max(forms, key=lambda form: (forms[form], len(str(form))))
    alike = [program for program in programs if _form(program) == form]
    least: dict[int, int] = {}  # by the place of the allocation
    for program in alike:
        for place, size in enumerate(size for sizes in program for size in sizes if size > 0):
            least[place] = min(least.get(place, size), size)
    return tuple(tuple(_with_least(entries, least)) for entries in _by_place(alike[0]))


def _by_place(program: WorkspaceSequence) -> list[list[tuple[int, bool]]]:
    """Each allocation as (its place, True), each free as (the place of its allocation, False)."""
    count, opened, result = 0, [], []
    for sizes in program:
        entries = []
        for size in sizes:
            if size > 0:
                opened.append((count, size))
                entries.append((count, True))
                count += 1
            else:
                at = max(i for i, (_, of) in enumerate(opened) if of == -size)
                entries.append((opened.pop(at)[0], False))
        result.append(entries)
    return result


def _form(program: WorkspaceSequence) -> tuple[tuple[tuple[int, bool], ...], ...]:
    return tuple(tuple(entries) for entries in _by_place(program))


def _with_least(entries: list[tuple[int, bool]], least: dict[int, int]) -> Iterable[int]:
    return (least[place] if taken else -least[place] for place, taken in entries)

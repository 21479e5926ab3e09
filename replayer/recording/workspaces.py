"""Finds recorded workspaces: the temporary memory of cuDNN and cuBLAS.

    workspaces = Workspaces.of(trace, recording, rank)
    workspaces.of_op(recording.keys[signature])     # ((), (56623104, -56623104)): after the op's first output

Note [Sizes of recorded workspaces]
    A recorded memory block may be up to 1 MiB larger than the requested size. The requested size is therefore estimated as the
    smallest block among calls with the same op, shapes and dtypes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from replayer.recording.recorded_run import RecordedRun
from replayer.recording.recorded_step import MatchKeys
from traces.figures.measure import innermost_at
from traces.model.run import KINETO
from traces.model.trace import NONE, HostKind, MemoryEvents, Trace, parse_shapes
from traces.names.equivalent_ops import canonical_op

_PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm"))
_WITH_PRODUCTS = (
    "addbmm addbmm_ conv_tbc _euclidean_dist linalg_matrix_exp _native_multi_head_attention _transformer_encoder_layer_fwd"
    " _slow_conv2d_forward _slow_conv2d_backward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d"
    " slow_conv_transpose3d linalg_solve_triangular triangular_solve"  # cuBLAS solves triangular systems
).split()
# ops of PyTorch that call cuBLAS in C++
OPS_WITH_PRODUCTS = frozenset(f"aten::{name}" for name in _WITH_PRODUCTS)
_CALL_CUBLAS = _PRODUCTS | OPS_WITH_PRODUCTS


def keeps_workspaces(trace: Trace, rank: int, sizes_bytes: frozenset[int]) -> bool | None:
    """Return True if cuBLAS kept its workspace between calls. None means unknown."""
    host, memory, held_bytes = trace.host, trace.memory, trace.machine_of(rank).cublas_bytes
    if held_bytes:
        return True
    is_product = trace.strings.matching(host.name, _CALL_CUBLAS.__contains__)
    of_rank = [row for row, thread in enumerate(trace.threads) if thread.rank == rank]
    products = np.flatnonzero((host.kind == HostKind.OP) & is_product & np.isin(host.thread, of_rank))
    events = memory.take((memory.device != NONE) & (memory.allocated_bytes >= 0) & np.isin(memory.thread, of_rank))
    if held_bytes == 0 and len(products):
        return False
    if not len(events):
        return None
    between = np.ones(len(events), dtype=bool)
    if len(products):
        between = events.time_ns > host.end_ns[products].min()
    if len(products) > 1:  # a script may free the workspaces at its end
        between &= events.time_ns <= host.end_ns[products].max()
    if len(np.unique(events.device)) == 1 and (events.allocated_bytes[between] < min(sizes_bytes)).any():
        return False
    if not len(products):
        return None
    version = (trace.machine_of(rank).torch or "").partition(" ")[0]
    if trace.run_of(rank).source != KINETO or version not in ("1.13", "2.4"):
        return None
    taken = events.take(np.isin(events.bytes, [-size for size in sizes_bytes]))
    for thread in np.unique(taken.thread):
        here = products[host.thread[products] == thread]
        times_ns = taken.time_ns[taken.thread == thread]
        within = np.searchsorted(host.start_ns[here], times_ns, side="right") - 1
        if len(here) and ((within >= 0) & (times_ns <= host.end_ns[here][np.maximum(within, 0)])).any():
            return False
    return True


def ops_with_products(trace: Trace) -> frozenset[str]:
    """Return the names of ops that use a matrix product of cuBLAS internally, such as "aten::_euclidean_dist". Some ops, such
    as "aten::convolution", are returned only if a recorded call of the op contains a matrix product."""
    host = trace.host
    names, at = set[int](), host.parent[trace.strings.matching(host.name, _CALL_CUBLAS.__contains__)]
    while len(at := np.unique(at[at != NONE])):
        names.update(host.name[at].tolist())
        at = host.parent[at]
    return frozenset(trace.strings[name] for name in names) - _PRODUCTS | OPS_WITH_PRODUCTS


# bytes that an op allocates (positive) and frees (negative), before its first output and after each output
WorkspaceSequence = tuple[tuple[int, ...], ...]


@dataclass
class Workspaces:
    _exact: dict[str, WorkspaceSequence]
    _equivalent: dict[str, WorkspaceSequence]

    @classmethod
    def of(cls, trace: Trace, recording: RecordedRun, rank: int) -> Workspaces:
        if not recording.match_keys.has_shapes:  # without shapes, calls of an op with different sizes cannot be distinguished
            return cls({}, {})
        exact: dict[str, list[WorkspaceSequence]] = defaultdict(list)
        equivalent: dict[str, list[WorkspaceSequence]] = defaultdict(list)
        strings = trace.strings
        for (name, shapes, dtypes, layout, outermost), sequences in _sequences_by_call(trace, rank).items():
            op, dtype = strings[name], strings[dtypes].partition(";")[0] if dtypes != NONE else ""
            sizes = parse_shapes(strings[shapes]) if shapes != NONE else ()
            keys = recording.match_keys.of_op(op, sizes, dtype, layout=strings[layout])
            exact[keys.exact] += sequences
            if outermost:
                equivalent[keys.equivalent] += sequences
        usual = {key: sequence for key, of_key in equivalent.items() if (sequence := _usual(of_key))}
        # an empty sequence means that the op uses no workspaces
        return cls({key: _usual(of_key) for key, of_key in exact.items()}, usual)

    def of_op(self, keys: MatchKeys) -> WorkspaceSequence:
        sequence = self._exact.get(keys.exact)
        return self._equivalent.get(keys.equivalent, ()) if sequence is None else sequence


class _CallKind(NamedTuple):
    name: int
    shapes: int
    dtypes: int
    layout: int
    outermost: bool


def _sequences_by_call(trace: Trace, rank: int) -> dict[_CallKind, list[WorkspaceSequence]]:
    host = trace.host
    parent, is_op = host.parent.tolist(), (host.kind == HostKind.OP).tolist()
    name, shapes, dtypes, layout = (column.tolist() for column in (host.name, host.shapes, host.dtypes, host.layout))
    ends_ns = host.end_ns.tolist()
    texts = {i: trace.strings[i] for i in set(name)}
    canonical = {i: canonical_op(text) for i, text in texts.items() if "::" in text and not text.startswith("autograd::")}
    ranks = np.array([device.rank for device in trace.devices] or [0])
    found: dict[_CallKind, list[WorkspaceSequence]] = defaultdict(list)
    events = trace.memory.take((trace.memory.device != NONE) & (ranks[trace.memory.device] == rank))
    for device in np.unique(events.device):
        of_device = events.take(events.device == device)
        for thread in np.unique(of_device.thread[of_device.thread != NONE]):
            here = of_device.take(of_device.thread == thread)
            here = here.take(np.argsort(here.time_ns, kind="stable"))
            sizes, times_ns = here.bytes.tolist(), here.time_ns.tolist()
            inside: dict[int, list[int]] = defaultdict(list)
            within: set[int] = set()
            for event, row in enumerate(innermost_at(host, np.flatnonzero(host.thread == thread), here.time_ns).tolist()):
                below: list[int] = []
                while row != NONE:
                    if is_op[row] and name[row] in canonical:
                        if sizes[event] > 0 or times_ns[event] < ends_ns[row]:
                            inside[row].append(event)
                        within.update(inner for inner in below if canonical[name[inner]] == canonical[name[row]])
                        below.append(row)
                    row = parent[row]
            for row, indices in inside.items():
                call = _CallKind(name[row], shapes[row], dtypes[row], layout[row], row not in within)
                found[call].append(_sequence(here, indices))
    return found


def _sequence(events: MemoryEvents, indices: Iterable[int]) -> WorkspaceSequence:
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
    sequence: list[list[int]] = [[]]
    for i, size in enumerate(sizes):
        if i in partner:
            sequence[-1].append(size)
        elif size > 0:
            sequence.append([])
    while sequence and not sequence[-1]:
        sequence.pop()
    return tuple(map(tuple, sequence))


def _usual(sequences: list[WorkspaceSequence]) -> WorkspaceSequence:
    forms = Counter(_form(sequence) for sequence in sequences)
    form = max(forms, key=lambda form: (forms[form], len(str(form))))
    alike = [sequence for sequence in sequences if _form(sequence) == form]
    smallest: dict[int, int] = {}
    for sequence in alike:
        for position, size in enumerate(size for sizes in sequence for size in sizes if size > 0):
            smallest[position] = min(smallest.get(position, size), size)
    return tuple(tuple(smallest[place] if allocates else -smallest[place] for place, allocates in entries) for entries in form)


def _form(sequence: WorkspaceSequence) -> tuple[tuple[tuple[int, bool], ...], ...]:
    count, opened, result = 0, [], []
    for sizes in sequence:
        entries = []
        for size in sizes:
            if size > 0:
                opened.append((count, size))
                entries.append((count, True))
                count += 1
            else:
                at = max(i for i, (_, of) in enumerate(opened) if of == -size)
                entries.append((opened.pop(at)[0], False))
        result.append(tuple(entries))
    return tuple(result)

"""Builds one trace from the profiler files of one or more ranks.

    trace = assemble([Source("rank0.json", "rank0.json", text0), Source("rank1.json", "rank1.json", text1)], problems)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from traces.chrome.export_notes import HEADER_KEY, PAIR_KEY, ExportNotes
from traces.combining.merge import absent_ranks, merge_ranks
from traces.combining.profiler_cycles import cycles_of, joined_cycles
from traces.combining.rank_clocks import gap_ns, on_one_clock, rank_clocks
from traces.comparison.thresholds import CLOCKS_WITHIN_NS, RANKS_END_WITHIN_NS
from traces.kineto.reading.eras import DEVICE_CATEGORIES, TORCH_OF_ERA, TsUnit, era
from traces.kineto.reading.event_rows import QUEUE, CategoryEvents, as_list
from traces.kineto.reading.groups import Groups, Piece
from traces.kineto.reading.sources import Source
from traces.kineto.reading.text import Document, parse_all
from traces.kineto.spans.impossible import has_dependent_launch
from traces.kineto.spans.spans import RankTables, read_tables
from traces.kineto.structure.collectives import read_collectives
from traces.kineto.structure.devices import is_of_amd, properties_of, read_devices
from traces.kineto.structure.stages import read_stages
from traces.kineto.structure.steps import read_steps
from traces.model.machine import Machine, hip_version, runtime_version
from traces.model.row_order import lists_by_key
from traces.model.run import KINETO, QUEUES, STREAMS, Distributed, Run, distributed_of
from traces.model.trace import (
    NONE,
    STEP_MARKS,
    Column,
    Device,
    DeviceKind,
    Ending,
    HostKind,
    Strings,
    Trace,
    TraceImportError,
)
from traces.names.profiler_json import ProfilerJson

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d+)|(?:^|[^a-z])worker[-_.]?(\d+)", re.IGNORECASE)
_PLACES_IN_NAME = re.compile(r"-(?:TP|DP|PP|EP|CP)-(\d{1,6})(?!\d)")
_NUMBER = re.compile(r"\d+(?=\D*$)")
# keys that only torch.profiler writes
_KINETO_KEYS = frozenset(("schemaVersion", "deviceProperties", "computeProperties", "distributedInfo", "baseTimeNanoseconds"))
_HEADER_FACTS = (
    "cupti_version roctracer_version record_shapes profile_memory with_stack with_flops with_modules trace_id".split()
)


@dataclass(frozen=True)
class _Recording:
    trace: Trace
    file: str
    rank: int | None
    exported: ExportNotes | None
    correlations: tuple[int, int] | None

    @property
    def world_size(self) -> int | None:
        return (self.trace.run_of(0).distributed or Distributed()).world_size

    @property
    def backend(self) -> str | None:
        return (self.trace.run_of(0).distributed or Distributed()).backend

    @property
    def nccl(self) -> str | None:
        return self.trace.machine_of(0).nccl


def assemble(
    sources: Iterable[Source], problems: Counter[str], *, skip_others: bool = False, marks_are_steps: bool = False
) -> Trace:
    """Build one trace from the contents of profiler files. Raises TraceImportError if no file can be read, or if the rank of a
    file is unknown. With `skip_others`, files without profiler events are skipped."""
    recordings: list[_Recording] = []
    skipped: dict[str, str] = {}
    failure = TraceImportError("contains no recording")
    for source in sources:
        found: Counter[str] = Counter()
        try:
            first = len(recordings)
            for document in parse_all(source.text, found, source.label, Piece.of):
                _refuse_pair(source, document)
                for rank, events in _by_rank(document.events).items():
                    recordings.append(_read_rank(source, replace(document, events=events), rank, found, marks_are_steps))
                # free the memory of the parsed file before the next file is read
                del document
            recordings[first:] = _of_one_file(recordings[first:])
        except TraceImportError as error:
            if not skip_others:
                raise
            skipped[source.name], failure = str(error).removeprefix(f"{source.label}: "), error
            continue
        problems.update(found)
    if not recordings:
        raise failure
    if skipped:
        problems["skipped-file"] += len(skipped)
    return _joined(_of_each_process(recordings), skipped, problems)


def _of_one_file(recordings: list[_Recording]) -> list[_Recording]:
    recordings = _of_each_process(recordings)
    if len(recordings) < 2:
        return recordings
    known = {part.rank for part in recordings}
    free = (number for number in count() if number not in known)
    seen: set[int | None] = {None}
    found = []
    for part in recordings:
        found.append(replace(part, rank=next(free)) if part.rank in seen else part)
        seen.add(part.rank)
    return found


def _of_each_process(recordings: list[_Recording]) -> list[_Recording]:
    if any(part.exported for part in recordings):
        return recordings
    found = []
    names, correlations = [(part.file, part.rank) for part in recordings], [part.correlations for part in recordings]
    for places in cycles_of([part.trace for part in recordings], names, correlations):
        parts = [recordings[place] for place in places]
        if len(parts) > 1:
            trace = joined_cycles([part.trace for part in parts])
            trace.provenance["files"] = [part.file for part in parts]
            parts = [replace(parts[0], trace=trace)]
        found += parts
    return found


def _joined(recordings: list[_Recording], skipped: dict[str, str], problems: Counter[str]) -> Trace:
    numbers = _rank_numbers(recordings)
    if len(recordings) > 1 and not any(part.exported for part in recordings):
        recordings = _on_one_clock(recordings, numbers, problems)
    trace = merge_ranks([part.trace for part in recordings], numbers)
    whole = recordings[0].exported
    if whole is not None and all(part.exported is not None and whole.same_whole(part.exported) for part in recordings):
        return _as_exported(trace, whole, problems)
    files = {str(number): {"file": part.file} for number, part in zip(numbers, recordings, strict=True)}
    differ = trace.provenance.get("ranks", {})
    trace.provenance["ranks"] = {str(rank): files[str(rank)] | differ.get(str(rank), {}) for rank in sorted(numbers)}
    if skipped:
        trace.provenance["skipped_files"] = skipped
    trace.problems = dict(sorted(problems.items()))
    trace.lacks = sorted([*trace.lacks, *absent_ranks(trace)])
    return trace


def _on_one_clock(recordings: list[_Recording], numbers: list[int], problems: Counter[str]) -> list[_Recording]:
    """Return the recordings with the times of all ranks on one clock. Raises TraceImportError if the recordings are from
    different runs."""
    file_of = {number: part.file for number, part in zip(numbers, recordings, strict=True)}
    clocks = rank_clocks([part.trace for part in recordings], numbers)
    if clocks.unlike and not problems["lost-kernel"]:
        one, other = clocks.unlike[0]
        raise TraceImportError(
            f"{file_of[one]} and {file_of[other]} are from different runs: the collectives of the two ranks do not end at"
            " the same times; put each run into its own folder"
        )
    ahead_ns = [clocks.ahead_ns.get(number, 0) for number in numbers]
    if moved := sum(abs(ns) > RANKS_END_WITHIN_NS for ns in ahead_ns):
        problems["rank-clocks"] += moved
    traces = on_one_clock([part.trace for part in recordings], ahead_ns)
    recordings = [replace(part, trace=trace) for part, trace in zip(recordings, traces, strict=True)]
    if _refuse_if_apart(recordings):
        problems["ranks-apart"] += 1
    return recordings


def _refuse_if_apart(recordings: list[_Recording]) -> bool:
    """Return True if less than CLOCKS_WITHIN_NS passed between two recordings. If more time passed, raise TraceImportError."""
    apart_ns, before, after = gap_ns([part.trace for part in recordings])
    if not all(part.trace.run_of(0).is_epochal for part in recordings) or apart_ns <= CLOCKS_WITHIN_NS:
        return apart_ns > 0
    raise TraceImportError(
        f"{recordings[before].file} and {recordings[after].file} are from different runs: {apart_ns // 10**9:,} s passed"
        " between the two recordings; put each run into its own folder"
    )


def _as_exported(trace: Trace, whole: ExportNotes, problems: Counter[str]) -> Trace:
    trace.grain, trace.provenance, trace.lacks = whole.grain, dict(whole.provenance), list(whole.lacks)
    ranks = trace.provenance.get("ranks")
    if isinstance(ranks, dict) and trace.ranks != whole.ranks:
        trace.provenance["ranks"] = {number: facts for number, facts in ranks.items() if number in map(str, trace.ranks)}
    trace.problems = {kind: max(whole.problems.get(kind, 0), problems[kind]) for kind in whole.problems | problems}
    return trace


def _rank_numbers(recordings: list[_Recording]) -> list[int]:
    files = [part.file for part in recordings]
    numbers = [part.rank for part in recordings]
    for fact, text in {"world_size": "{} ranks", "backend": "the backend {}", "nccl": "NCCL {}"}.items():
        known: dict[object, str] = {}
        for part in recordings:
            if (value := getattr(part, fact)) is not None:
                known.setdefault(value, part.file)
        if len(known) > 1:
            (one, first), (other, second) = list(known.items())[:2]
            raise TraceImportError(
                f"{first} has {text.format(one)} and {second} has {text.format(other)}, so the runs differ; put each run into"
                " its own folder"
            )
    if len(recordings) == 1:
        return [numbers[0] or 0]
    if None in numbers:
        numbers = [own if own is not None else named for own, named in zip(numbers, _ranks_in_names(files), strict=True)]
    if None in numbers:
        _refuse_if_apart(recordings)
    for file, number in zip(files, numbers, strict=True):
        if number is None:
            raise TraceImportError(
                f"{file} does not contain its rank, which is needed to merge several files; name the files rank0.json,"
                " rank1.json..."
            )
        first = files[numbers.index(number)]
        if numbers.count(number) > 1:
            second = files[numbers.index(number, numbers.index(number) + 1)]
            raise TraceImportError(
                f"{first} and {second} are both from rank {number}; put recordings of different runs into different folders"
            )
    return [number for number in numbers if number is not None]


def _ranks_in_names(files: list[str]) -> list[int | None]:
    """Return the rank in the name of each file, or None. Inference servers write names such as "TP-1-PP-0": tensor-parallel
    index 1, pipeline-parallel index 0."""
    stems = [file.rpartition("/")[2].partition(".")[0] for file in files]
    matches = [_RANK_IN_NAME.search(stem) for stem in stems]
    if not any(matches):
        names = [file.rpartition("/")[2] for file in files]
        places = [tuple(int(number) for number in _PLACES_IN_NAME.findall(name)) for name in names]
        if all(places) and len(set(places)) == len(files):
            return list(_ranks_of_places(places))
    bare = [_NUMBER.search(stem) for stem in stems]
    numbers = [int(match[0][:9]) if match else -1 for match in bare]
    if not any(matches) and sorted(numbers) == list(range(len(files))) and len({_NUMBER.sub("", stem) for stem in stems}) == 1:
        return list(numbers)
    return [int((match[1] or match[2])[:9]) if match else None for match in matches]


def _ranks_of_places(places: list[tuple[int, ...]]) -> list[int]:
    first = [place[0] for place in places]
    return first if len(set(first)) == len(places) else [sorted(places).index(place) for place in places]


def _by_rank(pieces: list[Piece]) -> dict[int | None, list[Piece]]:
    # see Note [Merged ranks] in traces/kineto/reading/groups.py
    found = lists_by_key((piece.rank, piece) for piece in pieces)
    own = {place: of for place, of in found.items() if place is not None and any(piece.complete for piece in of)}
    return dict(zip(_ranks_of_places(list(own)), own.values(), strict=True)) or {None: pieces}


def _refuse_pair(source: Source, document: Document) -> None:
    if PAIR_KEY in document.header:
        names = document.header[PAIR_KEY]
        which = f", {' and '.join(map(str, names))}" if isinstance(names, list) else ""
        raise TraceImportError(
            f"{source.label} contains two traces{which}; `trace export A B` writes such files for viewers only, so export"
            " and import each trace separately"
        )


def _read_rank(
    source: Source, document: Document, rank: int | None, problems: Counter[str], marks_are_steps: bool
) -> _Recording:
    info = document.header.get("distributedInfo")
    distributed = info if isinstance(info, dict) else {}
    if rank is None:
        rank = stored if type(stored := distributed.get("rank")) is int and 0 <= stored < 1 << 31 else None
    strings = Strings()
    groups = Groups.of(document.events, problems, stamps_per_us=1000 if document.exact_ns else 1)
    header, bare = document.header, document.bare
    _require_own_events(source, groups, header, bare or bool(problems["unreadable-event"]))
    notes = _notes_of(header, strings, problems)
    clock = TsUnit.of(header, groups.stamps, document.exact_ns, groups.spans)
    if notes:
        clock = replace(clock, epochal=False)
    if clock.duration_unit:
        problems[f"nanoseconds {clock.duration_unit}"] += 1
    kinds = groups.categories
    first = next(iter(groups.complete.values()), CategoryEvents(""))
    fractional = any(isinstance(stamp, float) for stamp in as_list(first.column("ts")[:8]))
    the_era = era(bare, header, kinds, clock, fractional)
    dependent_launch = has_dependent_launch(properties_of(header), is_of_amd(header))
    streams = _stream_numbers(groups) if is_of_amd(header) else ""
    tables = read_tables(groups, clock, strings, problems, notes, dependent_launch=dependent_launch)
    if notes:
        return _Recording(_from_export(tables, strings, notes), source.name, rank, notes, None)
    devices, row_of_device, visible = read_devices(header, tables)
    steps, phases, steps_from = read_steps(tables, strings, marks_are_steps)
    for table in (tables.device, tables.memory, phases):
        table.device = _renumbered(table.device, row_of_device)
    collectives = read_collectives(tables, strings)
    # If a process group has only one rank, NCCL runs no kernel for an in-place collective.
    if unseen := int(((collectives.ending == Ending.UNSEEN) & (collectives.group_size != 1)).sum()):
        problems["collective-without-kernel"] += unseen
    starts = [table.start_ns for table in (tables.host, tables.device) if len(table)]
    clock_name = TsUnit.name(np.concatenate(starts) if starts else np.empty(0, "i8"))
    facts: ProfilerJson = {
        "era": the_era,
        "steps_from": steps_from,
        "visible_devices": visible,
        **{key: header[key] for key in _HEADER_FACTS if isinstance(header.get(key), int | float | str)},
    }
    if counters := groups.counter_figures():
        facts["hardware_counters"] = counters
    trace = Trace(
        strings=strings,
        devices=devices,
        threads=tables.threads,
        steps=steps,
        phases=phases,
        host=tables.host,
        device=tables.device,
        memory=tables.memory,
        parts=read_stages(tables, phases, strings, row_of_device),
        collectives=collectives,
        machines={0: _machine(header, TORCH_OF_ERA[the_era], distributed)},
        runs={0: Run(source=KINETO, clock=clock_name, distributed=distributed_of(distributed), stream_numbers=streams)},
        provenance=facts,
        lacks=sorted(_lacks(tables, steps_from, devices)),
    )
    return _Recording(trace, source.name, rank, None, tables.correlations)


def _require_own_events(source: Source, groups: Groups, header: ProfilerJson, may_lack_events: bool) -> None:
    if groups.is_foreign(may_lack_events) and (groups.categories or not _KINETO_KEYS & header.keys()):
        others = ", ".join(sorted(groups.categories)[:3])[:80] or "none"
        raise TraceImportError(
            f"{source.label}: no events from torch.profiler (categories: {others}); give a trace that torch.profiler exported"
        )


def _stream_numbers(groups: Groups) -> str:
    work = [rows for category, rows in groups.complete.items() if DEVICE_CATEGORIES.get(category) == DeviceKind.KERNEL]
    if not any(len(rows) for rows in work):
        return ""
    return STREAMS if any(queue != NONE for rows in work for queue in as_list(rows.column(QUEUE))) else QUEUES


def _machine(header: ProfilerJson, torch: str, distributed: ProfilerJson) -> Machine:
    supported = runtime_version(header.get("cuda_driver_version"))
    nccl = distributed.get("nccl_version")
    return Machine(
        torch=torch,
        nccl=nccl if isinstance(nccl, str) else None,
        cuda=runtime_version(header.get("cuda_runtime_version")),
        hip=hip_version(header.get("hip_runtime_version")),
        driver=supported and f"CUDA {supported}",
    )


def _notes_of(header: ProfilerJson, strings: Strings, problems: Counter[str]) -> ExportNotes | None:
    if HEADER_KEY not in header:
        return None
    try:
        return ExportNotes.parse(header[HEADER_KEY], strings)
    except ValueError:
        problems["unreadable-header"] += 1
        return None


def _from_export(tables: RankTables, strings: Strings, notes: ExportNotes) -> Trace:
    row_of_device = {device.index: row for row, device in enumerate(notes.devices)}
    for index in np.unique(np.concatenate([tables.device.device, tables.memory.device])).tolist():
        if index not in row_of_device and index != NONE:
            row_of_device[index] = len(notes.devices)
            notes.devices.append(Device(0, index, ""))
    for table in (tables.device, tables.memory):
        table.device = _renumbered(table.device, row_of_device)
    stored: ProfilerJson = notes.tables
    return Trace(
        grain=notes.grain,
        strings=strings,
        devices=notes.devices,
        threads=tables.threads,
        host=tables.host,
        device=tables.device,
        memory=tables.memory,
        machines={0: notes.machine} if notes.machine else {},
        runs={0: notes.run} if notes.run else {},
        provenance={key: value for key, value in notes.provenance.items() if key != "ranks"},
        lacks=notes.lacks,
        **stored,
    )


def _lacks(tables: RankTables, steps_from: str, devices: list[Device]) -> set[str]:
    host, memory = tables.host, tables.memory
    on_device = memory.device != NONE
    missing = {
        "host events": not len(host),
        "GPU work": not tables.device.is_work.any(),
        "launch calls": tables.device.is_work.any() and not (host.kind == HostKind.RUNTIME).any(),
        STEP_MARKS: steps_from in ("none", "whole"),
        "shapes": not (host.shapes != NONE).any(),
        "dtypes": not (host.dtypes != NONE).any(),
        "sequence numbers": not (host.sequence != NONE).any(),
        "device memory events": not on_device.any(),
        "memory addresses": on_device.any() and not memory.address[on_device].any(),
        "memory totals": on_device.any() and not (memory.allocated_bytes[on_device] != NONE).any(),
        "device properties": not any(device.name or device.properties.known() for device in devices),
        "call stacks": not ((host.kind == HostKind.PYTHON).any() or (host.stack != NONE).any()),
        "values": True,
    }
    return {what for what, is_missing in missing.items() if is_missing}


def _renumbered(column: Column, row_of: dict[int, int]) -> Column:
    numbers, which = np.unique(column, return_inverse=True)
    return np.array([row_of.get(n, NONE) for n in numbers.tolist()], "i4")[which]

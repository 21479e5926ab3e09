"""Combines recordings: `merge_ranks` joins several ranks, and `with_profile` replaces some steps by profiled steps.

    trace = merge_ranks([load("run.rank0.part"), load("run.rank1.part")])
    trace.run_of(1).loaders             # each rank's own
    trace.provenance["ranks"]           # {"0": {}, "1": {"argv": [...]}}: what differs from the first

    trace = with_profile(recording, read_kineto(Path("steps30to34.json")), [30, 31, 32, 33, 34])
    trace.run_of(0).profiler_cost       # host time of the profiler per op and launch

Note [Phases in a CUDA graph]
    A profile does not contain the ops of a CUDA graph, so it does not show which phases a script's own CUDA graph runs. The
    recorder knows these phases, so such a step keeps the recorder's phases.

Note [Forward passes that a profile does not show]
    The recorder's profiles contain no calls of modules. If a script accumulates gradients and loads the next batch before the
    backward pass, a profile does not show where the next forward pass begins. The recorder sees the call of the module, so a
    step in which it found more forward passes keeps the recorder's phases.

Note [The end of a backward pass]
    A profile shows the last event of a backward pass. `backward` returns later, for example because a thread of autograd still
    holds Python's lock. The recorder knows when `backward` returned. The backward pass of a profiled step therefore ends
    at this time if the script's thread has no event in between. Otherwise this time would belong to the next phase in profiled
    steps, but to the backward pass in clean steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from traces.combining.profiler_cost import with_clean_pace
from traces.comparison.thresholds import SEEN_SHARE
from traces.figures.measure import (
    clean_steps,
    host_ranks,
    joined_phases,
    of_one_kind,
    own_graph_launches,
    passes_of_steps,
    phases_per_step,
    step_windows,
    work_rows,
)
from traces.model.intervals import Intervals, TimeWindows
from traces.model.row_order import by_value, in_order, new_positions, repointed, with_rows
from traces.model.run import CleanSteps, Run
from traces.model.trace import (
    NONE,
    TABLES,
    WITHOUT_PROFILER,
    BatchKind,
    Collectives,
    Column,
    Device,
    DeviceSpans,
    HostSpans,
    MemoryEvents,
    Phases,
    StepKind,
    Steps,
    Strings,
    Thread,
    Trace,
)

NO_KERNELS = "kernels: the profiler saw no device work"

# data that only torch.profiler records
_BROUGHT = frozenset(
    "kernels,host ops,host events,memory events,GPU work,shapes,dtypes,sequence numbers,device memory events,memory addresses,"
    "memory totals,call stacks".split(",")
)


def merge_ranks(recordings: Sequence[Trace], ranks: Sequence[int] | None = None) -> Trace:
    """Merge recordings of several processes, with one rank per process. A process with an unknown or repeated rank gets the
    first free rank number. Raises ValueError if `recordings` is empty."""
    if not recordings:
        raise ValueError("no recordings to merge; give at least one")
    problems: Counter[str] = Counter()
    numbers = list(ranks) if ranks is not None else _rank_numbers(recordings, problems)
    ordered = sorted(zip(numbers, recordings, strict=True), key=lambda pair: pair[0])
    parts = [_as_rank(recording, number) for number, recording in ordered]
    for part in parts:
        problems.update(part.problems)
    first = parts[0]
    merged = replace(
        first if len(parts) == 1 else in_order(_stacked(parts)),
        grain="kernel" if any(part.grain == "kernel" for part in parts) else first.grain,
        devices=[device for part in parts for device in part.devices],
        threads=[thread for part in parts for thread in part.threads],
        machines={rank: machine for part in parts for rank, machine in part.machines.items()},
        runs={rank: run for part in parts for rank, run in part.runs.items()},
        provenance=dict(first.provenance),
        problems=dict(problems),
        lacks=list(dict.fromkeys(lack for part in parts for lack in part.lacks)),
    )
    if len(parts) > 1:
        merged.provenance["ranks"] = {
            str(number): {k: v for k, v in part.provenance.items() if k not in first.provenance or first.provenance[k] != v}
            for (number, _), part in zip(ordered, parts, strict=True)
        }
    return merged


def absent_ranks(trace: Trace) -> list[str]:
    """Return `["6 of 8 ranks"]` if a trace contains 2 ranks of a job with 8 ranks, and otherwise an empty list."""
    world_size = max((of.world_size or 0 for run in trace.runs.values() if (of := run.distributed)), default=0)
    absent = world_size - len(trace.ranks)
    return [f"{absent} of {world_size} ranks"] if absent > 0 else []


def trace_of_ranks(trace: Trace, ranks: Sequence[int]) -> Trace:
    of_steps = np.append(trace.steps.rank, NONE)
    ranks_of = {
        "thread": np.array([*(thread.rank for thread in trace.threads), NONE]),
        "device": np.array([*(device.rank for device in trace.devices), NONE]),
        "step": of_steps,
        "phase": np.append(of_steps[trace.phases.step], NONE),
    }
    # whether the rank of a thread, device, step or phase is one of `ranks`; NONE if the rank is unknown
    is_chosen = {column: np.where(of == NONE, NONE, np.isin(of, ranks)).astype("i1") for column, of in ranks_of.items()}
    owners = {
        "phases": ["step"],
        "host": ["thread"],
        "device": ["device"],
        "memory": ["device", "thread"],
        "parts": ["thread", "device", "phase"],
    }
    rows = {}
    for name in TABLES:
        chosen_rows, first_row = [], 0
        for piece in getattr(trace, name).pieces():
            if name not in owners:
                chosen = np.isin(piece.rank, ranks)
            else:
                first, *others = owners[name]
                chosen = is_chosen[first][getattr(piece, first)]
                for column in others:
                    if (chosen == NONE).any():
                        chosen = np.where(chosen == NONE, is_chosen[column][getattr(piece, column)], chosen)
                chosen[chosen == NONE] = trace.ranks[0] in ranks
            chosen_rows.append(np.flatnonzero(chosen) + first_row)
            first_row += len(piece)
        rows[name] = np.concatenate([np.empty(0, "i8"), *chosen_rows])
    part = with_rows(trace, rows)
    threads = [row for row, thread in enumerate(trace.threads) if thread.rank in ranks]
    devices = [row for row, device in enumerate(trace.devices) if device.rank in ranks]
    places = {"threads": new_positions(threads, len(trace.threads)), "devices": new_positions(devices, len(trace.devices))}
    part = repointed(part, places)
    return replace(part, threads=[trace.threads[row] for row in threads], devices=[trace.devices[row] for row in devices])


def with_profile(recording: Trace, profile: Trace, numbers: Sequence[int]) -> Trace:
    """Return a copy of a recording with some steps replaced by the steps of a torch.profiler trace. If the two traces use
    different clocks, the times of the profile are shifted to match the recording."""
    problems = Counter(recording.problems)
    pairs = _paired(recording, profile, numbers)
    if not pairs:
        problems["profile-without-steps"] += 1
        return replace(recording, problems=dict(problems))
    own, theirs = np.array(pairs).T
    # The profile may end with a step that the script did not finish.
    if unlike := len(numbers) + int(theirs.max()) + 1 - 2 * len(pairs):
        problems["profile-steps-missing-or-extra"] += unlike
    problems.update(profile.problems)
    profile = _on_clock_of(recording, profile, own, theirs)
    grain, lacks = _united_lacks(recording, profile)
    rank = recording.ranks[0]
    run = _with_slowdown(recording.run_of(rank), recording, own)
    recording = _split_before_loader(recording, profile, own, theirs)
    provenance = recording.provenance | {"profile": {key: of for key, of in profile.provenance.items() if key != "ranks"}}
    joined = _replaced_steps(recording, profile, own, theirs)
    runs = recording.runs | {rank: with_clean_pace(run, joined, rank, _cut_otherwise(recording, joined, own))}
    if late := _clean_after_profile(joined, rank):
        problems["clean-steps-after-profile"] = late
    return replace(joined, grain=grain, runs=runs, provenance=provenance, problems=dict(problems), lacks=lacks)


def _cut_otherwise(recording: Trace, joined: Trace, own: Column) -> list[str]:
    # Only training steps show how much the profiler slows the script. An evaluation step that compiles code may take longer
    # than all other steps.
    trains = recording.steps.kind[own] != StepKind.EVALUATION
    own = own[trains] if trains.any() else own
    seen_ns, whole_ns = (
        {trace.strings[name]: int(trace.phases.duration_ns[of].sum()) for name, of in by_value(joined_phases(trace)[0]).items()}
        for trace in (with_rows(of, {"phases": np.flatnonzero(np.isin(of.phases.step, own))}) for of in (recording, joined))
    )
    shorter = [name for name, ns in seen_ns.items() if ns < SEEN_SHARE * whole_ns.get(name, 0)]
    missing_ns = sum(whole_ns[name] - seen_ns[name] for name in shorter)
    longer_ns = {name: ns - whole_ns.get(name, 0) for name, ns in seen_ns.items() if whole_ns.get(name, 0) < SEEN_SHARE * ns}
    return [*shorter, *(name for name, ns in longer_ns.items() if 0 < SEEN_SHARE * missing_ns < ns)]


def _rank_numbers(recordings: Sequence[Trace], problems: Counter[str]) -> list[int]:
    numbers: list[int] = [NONE] * len(recordings)
    for place, recording in enumerate(recordings):
        rank = next(iter(recording.runs), NONE)
        if 0 <= rank < 1 << 31:
            if rank in numbers:
                problems["rank-told-twice"] += 1
            else:
                numbers[place] = rank
    free = (number for number in range(2 * len(numbers)) if number not in numbers)
    return [next(free) if number == NONE else number for number in numbers]


def _as_rank(recording: Trace, rank: int) -> Trace:
    tables: dict[str, Any] = {}
    for name, kind in TABLES.items():
        if "rank" in kind.DTYPES:
            tables[name] = table = getattr(recording, name).take(slice(None))
            table.rank = np.full(len(table), rank, "i4")
    devices = [replace(device, rank=rank) for device in recording.devices]
    threads = [replace(thread, rank=rank) for thread in recording.threads]
    machines = {rank: recording.machine_of(recording.ranks[0])} if recording.machines else {}
    runs = {rank: recording.run_of(recording.ranks[0])} if recording.runs else {}
    return replace(recording, devices=devices, threads=threads, machines=machines, runs=runs, **tables)


def _stacked(parts: Sequence[Trace], places: Mapping[str, Column] | None = None) -> Trace:
    strings = Strings()
    rows = dict.fromkeys([*TABLES, "devices", "threads"], 0)
    reads = 0
    moved: list[Trace] = []
    for part in parts:
        to = {name: np.append(np.arange(len(getattr(part, name))) + before, NONE) for name, before in rows.items()}
        to["strings"] = np.array([*map(strings.add, part.strings.texts), NONE])
        moved.append(repointed(part, to | dict(places or {}) if part is parts[-1] else to))
        numbers, read = np.unique(part.values.read, return_inverse=True)
        moved[-1].values.read = read.astype("i8") + reads
        reads += len(numbers)
        for name in rows:
            rows[name] += len(getattr(part, name))
    tables: dict[str, Any] = {name: kind.concatenated([getattr(part, name) for part in moved]) for name, kind in TABLES.items()}
    return replace(parts[0], strings=strings, **tables)


def _paired(recording: Trace, profile: Trace, numbers: Sequence[int]) -> list[tuple[int, int]]:
    steps, theirs = recording.steps, profile.steps
    row_of: dict[int, int] = {}
    for row in np.argsort(steps.kind == StepKind.PROFILED, kind="stable").tolist():  # prefer a profiled step
        row_of[int(steps.number[row])] = row
    rows = [row_of.get(number, NONE) for number in numbers]
    if len(theirs) != len(rows) and _have_epochs(recording, profile):
        found: dict[int, int] = {}
        for row in filter(lambda row: row != NONE, rows):
            begin_ns, end_ns = int(steps.start_ns[row]), int(steps.end_ns[row])
            shared_ns = np.minimum(theirs.end_ns, end_ns) - np.maximum(theirs.start_ns, begin_ns)
            if len(theirs) and shared_ns.max() > 0:
                found.setdefault(int(shared_ns.argmax()), row)
        return [(row, other) for other, row in found.items()]
    return [(row, other) for other, row in enumerate(rows[: len(theirs)]) if row != NONE]


def _have_epochs(*traces: Trace) -> bool:
    return all(trace.run_of(trace.ranks[0]).is_epochal for trace in traces)


def _on_clock_of(recording: Trace, profile: Trace, own: Column, theirs: Column) -> Trace:
    if _have_epochs(recording, profile):
        return profile
    apart_ns = recording.steps.start_ns[own] - profile.steps.start_ns[theirs]
    # a float is too imprecise for a Unix time in nanoseconds
    return shifted(profile, int(apart_ns[0]) + round(float(np.median(apart_ns - apart_ns[0]))))


def shifted(trace: Trace, shift_ns: int) -> Trace:
    tables: dict[str, Any] = {}
    for name, kind in TABLES.items():
        table = tables[name] = getattr(trace, name).take(slice(None))
        for column in kind.DTYPES:
            if column in ("start_ns", "time_ns"):
                setattr(table, column, getattr(table, column) + shift_ns)
            elif column in ("device_start_ns", "device_end_ns", "called_ns"):
                times_ns = getattr(table, column)
                setattr(table, column, np.where(times_ns == NONE, NONE, times_ns + shift_ns))
    return replace(trace, **tables)


def _replaced_steps(recording: Trace, profile: Trace, own: Column, theirs: Column) -> Trace:
    rank = int(recording.steps.rank[own[0]])
    steps = recording.steps.take(slice(None))
    columns = {name: column.copy() for name, column in steps.columns().items()}
    columns["start_ns"][own], columns["duration_ns"][own] = profile.steps.start_ns[theirs], profile.steps.duration_ns[theirs]
    trained = own[np.isin(columns["kind"][own], WITHOUT_PROFILER)]
    columns["kind"][trained] = StepKind.PROFILED
    step_of = np.full(len(profile.steps) + 1, NONE)
    step_of[theirs] = own
    devices, device_of = _matched_devices(recording.devices, profile.devices, rank)
    threads, thread_of = _matched_threads(recording.threads, profile.threads, rank)
    hidden = np.empty(0, np.int64)
    if _have_epochs(recording, profile):
        hidden = np.union1d(_steps_with_own_graphs(profile), _steps_with_unseen_forwards(recording, profile, own, theirs))
        profile = replace(profile, phases=_until_backward_returns(recording, profile, own, theirs))
    hidden = hidden[np.isin(step_of[hidden], recording.phases.step)]
    profile = with_rows(
        profile, {"phases": np.flatnonzero((step_of[profile.phases.step] != NONE) & ~np.isin(profile.phases.step, hidden))}
    )
    stays = ~np.isin(recording.phases.step, np.setdiff1d(own, step_of[hidden]))
    of_part = np.append(recording.phases.step, NONE)[recording.parts.phase]
    measured = np.isin(of_part, step_of[np.append(profile.phases.step, NONE)[profile.parts.phase]]) & (of_part != NONE)
    kept = replace(
        recording,
        steps=type(steps)(**columns),
        host=HostSpans.empty(),
        device=DeviceSpans.empty(),
        memory=MemoryEvents.empty() if len(profile.memory) else recording.memory,
    )
    kept = with_rows(kept, {"phases": np.flatnonzero(stays), "parts": np.flatnonzero(~measured)})
    # torch.profiler does not record how many bytes gloo transfers.
    own_calls, seen = kept.collectives, profile.collectives
    if (seen.bytes != NONE).any():
        kept = with_rows(kept, {"collectives": np.flatnonzero(~_covered(profile.steps.take(theirs), own_calls.call_ns))})
    else:
        profile = with_rows(profile, {"collectives": np.flatnonzero(~_covered(own_calls, seen.call_ns))})
    profile = _as_rank(replace(profile, steps=type(steps).empty()), rank)
    joined = _stacked([kept, profile], {"steps": step_of, "devices": device_of, "threads": thread_of})
    _fit_phases(joined, step_of[hidden])
    moved = np.flatnonzero(np.isin(of_part[~measured], own))
    phases = TimeWindows(joined.phases.start_ns, joined.phases.end_ns, joined.phases.step)
    joined.parts.phase[moved] = phases.holding(joined.parts.start_ns[moved], of_part[~measured][moved])
    return in_order(replace(joined, devices=devices, threads=threads))


def _steps_with_own_graphs(profile: Trace) -> Column:
    # see Note [Phases in a CUDA graph]
    launches = own_graph_launches(profile)
    steps = step_windows(profile).holding(profile.host.start_ns[launches], host_ranks(profile)[launches])
    return np.asarray(np.setdiff1d(steps, [NONE]))


def _steps_with_unseen_forwards(recording: Trace, profile: Trace, own: Column, theirs: Column) -> Column:
    # see Note [Forward passes that a profile does not show]
    return np.asarray(theirs[phases_per_step(profile, "forward")[theirs] < phases_per_step(recording, "forward")[own]])


def _until_backward_returns(recording: Trace, profile: Trace, own: Column, theirs: Column) -> Phases:
    # see Note [The end of a backward pass]
    phases, ends_ns = profile.phases.take(slice(None)), profile.phases.end_ns
    on_main = np.append([thread.role == "main" for thread in profile.threads], False)[profile.host.thread]
    events_ns = np.sort(profile.host.start_ns[on_main])
    for pair in zip(own.tolist(), theirs.tolist(), strict=True):
        passes, rows = (
            np.flatnonzero((trace.phases.step == step) & (trace.phases.name == trace.strings.find("backward")))
            for trace, step in zip((recording, profile), pair, strict=True)
        )
        if len(passes) != len(rows):
            continue
        for row, returned_ns in zip(rows.tolist(), recording.phases.end_ns[passes].tolist(), strict=True):
            later_ns, following = returned_ns - int(ends_ns[row]), row + 1
            if following == len(phases) or phases.step[following] != pair[1]:
                continue
            first, last = np.searchsorted(events_ns, (ends_ns[row], returned_ns))
            if first == last and 0 < later_ns < phases.duration_ns[following]:
                phases.duration_ns[row] += later_ns
                phases.start_ns[following] += later_ns
                phases.duration_ns[following] -= later_ns
    return phases


def _fit_phases(trace: Trace, steps: Column) -> None:
    phases = trace.phases
    for step in steps.tolist():
        rows = np.flatnonzero(phases.step == step)
        rows = rows[np.argsort(phases.start_ns[rows], kind="stable")]
        moments_ns = np.append(phases.start_ns[rows], trace.steps.end_ns[step])
        moments_ns[0] = trace.steps.start_ns[step]
        moments_ns = np.clip(np.maximum.accumulate(moments_ns), None, moments_ns[-1])
        phases.start_ns[rows], phases.duration_ns[rows] = moments_ns[:-1], np.diff(moments_ns)


def _covered(spans: Steps | Collectives, times_ns: Column) -> Column:
    return Intervals(spans.start_ns, spans.end_ns).holds(times_ns)


def _matched_devices(own: list[Device], theirs: list[Device], rank: int) -> tuple[list[Device], Column]:
    devices = list(own)
    row_of = {device.index: row for row, device in enumerate(own) if device.rank == rank}
    places = []
    for device in theirs:
        row = row_of.get(device.index)
        if row is None:
            row = len(devices)
            devices.append(replace(device, rank=rank))
        else:
            known = devices[row]
            devices[row] = replace(
                known,
                name=known.name or device.name,
                total_memory_bytes=device.total_memory_bytes if known.total_memory_bytes == NONE else known.total_memory_bytes,
                properties=known.properties.completed_by(device.properties),
            )
        places.append(row)
    return devices, np.array([*places, NONE])


def _matched_threads(own: list[Thread], theirs: list[Thread], rank: int) -> tuple[list[Thread], Column]:
    threads = list(own)
    row_of = {thread.tid: row for row, thread in enumerate(own) if thread.rank == rank}
    main = next((row for row, thread in enumerate(own) if thread.rank == rank and thread.role == "main"), None)
    places = []
    for thread in theirs:
        row = main if thread.role == "main" and main is not None else row_of.get(thread.tid)
        if row is None:
            row = len(threads)
            threads.append(replace(thread, rank=rank))
        elif threads[row].role == "other":
            threads[row] = replace(threads[row], role=thread.role, name=threads[row].name or thread.name)
        places.append(row)
    return threads, np.array([*places, NONE])


def _with_slowdown(run: Run, recording: Trace, profiled: Column) -> Run:
    kinds = recording.steps.kind
    trained = profiled[np.isin(kinds[profiled], (StepKind.PROFILED, *WITHOUT_PROFILER))]
    profiled = trained if len(trained) else profiled[kinds[profiled] == StepKind.EVALUATION]
    clean = np.setdiff1d(clean_steps(recording, trains=bool(len(trained))), profiled)
    if not len(clean) or not len(profiled):
        return run
    count = len(clean)
    profiled, clean = of_one_kind(recording, profiled, clean)
    step_ns, profiled_ns = (float(np.median(recording.steps.duration_ns[rows])) for rows in (clean, profiled))
    slowdown = profiled_ns / step_ns if step_ns else 1.0
    return replace(run, clean=CleanSteps(count, round(step_ns), round(profiled_ns), slowdown))


def _clean_after_profile(trace: Trace, rank: int) -> int:
    steps = trace.steps
    profiled = steps.start_ns[(steps.rank == rank) & (steps.kind == StepKind.PROFILED)]
    if not len(profiled) or not len(work_rows(trace)):
        return 0
    return int(((steps.rank == rank) & (steps.kind == StepKind.STEADY) & (steps.start_ns > profiled.min())).sum())


class _Lead(NamedTuple):
    name: str
    share: float  # end of the phase on the host, as a share of the time before the first loader phase
    behind_ns: int  # how much later the phase ends on the device than on the host, or NONE


def _split_before_loader(recording: Trace, profile: Trace, own: Column, theirs: Column) -> Trace:
    leads: dict[int, list[_Lead]] = {}
    for step, passes in zip(theirs.tolist(), passes_of_steps(profile)[theirs].tolist(), strict=True):
        leads.setdefault(passes, leads.get(passes) or _leads(profile, step))
    steps, phases, passes_of = recording.steps, recording.phases, passes_of_steps(recording)
    clean = np.setdiff1d(np.flatnonzero(steps.kind != StepKind.EVALUATION), own)
    is_first = phases.start_ns == np.append(steps.start_ns, NONE)[phases.step]
    loader = (phases.name == recording.strings.find("loader")) & is_first & np.isin(phases.step, clean)
    waits = recording.batches.take(recording.batches.kind == BatchKind.WAIT)
    before: list[dict[str, int]] = []
    columns = {name: column.copy() for name, column in phases.columns().items()}
    for row in np.flatnonzero(loader).tolist():
        values = {name: int(column[row]) for name, column in columns.items()}
        begin_ns, device_ns, last_ns = values["start_ns"], values["device_start_ns"], values["device_end_ns"]
        asked_ns = waits.start_ns[(waits.rank == steps.rank[values["step"]]) & (waits.start_ns >= begin_ns)]
        lead = leads.get(int(passes_of[values["step"]]))
        if not lead or not len(asked_ns) or not begin_ns < asked_ns[0] < phases.end_ns[row]:
            continue
        whole_ns, done_ns = int(asked_ns[0]) - begin_ns, 0
        for name, share, behind_ns in lead:
            until_ns = round(whole_ns * share)
            until_device_ns = NONE
            if NONE not in (device_ns, last_ns, behind_ns):
                until_device_ns = min(max(device_ns, begin_ns + until_ns + behind_ns), last_ns)
            host = {"start_ns": begin_ns + done_ns, "duration_ns": until_ns - done_ns}
            device = {"device_start_ns": device_ns, "device_end_ns": until_device_ns}
            before.append(values | {"name": recording.strings.add(name)} | host | device)
            done_ns, device_ns = until_ns, until_device_ns
        columns["start_ns"][row] += whole_ns
        columns["duration_ns"][row] -= whole_ns
        columns["device_start_ns"][row] = device_ns
    added = Phases.of(**{name: [values[name] for values in before] for name in columns})
    return in_order(replace(recording, phases=Phases.concatenated([Phases(**columns), added]))) if before else recording


def _leads(profile: Trace, step: int) -> list[_Lead]:
    phases = profile.phases.take(profile.phases.step == step)
    names = [profile.strings[name] for name in phases.name.tolist()]
    count = names.index("loader") if "loader" in names else 0
    begin_ns = int(profile.steps.start_ns[step])
    whole_ns = int(phases.end_ns[count - 1]) - begin_ns if count else 0
    ends = zip(names[:count], phases.end_ns.tolist(), phases.device_end_ns.tolist(), strict=False)
    return [
        _Lead(name, (end_ns - begin_ns) / whole_ns, NONE if device_ns == NONE else max(device_ns - end_ns, 0))
        for name, end_ns, device_ns in ends
        if whole_ns
    ]


def _united_lacks(recording: Trace, profile: Trace) -> tuple[str, list[str]]:
    lacks = [lack for lack in recording.lacks if lack not in _BROUGHT]
    has = {"values": len(recording.values), "steps": True, "device properties": len(recording.devices), "GPU work": True}
    # a profile lacks the other ranks of the run, but their recordings are merged later
    absent = absent_ranks(profile)
    lacks += [lack for lack in profile.lacks if not (lack in lacks or has.get(lack) or lack in absent)]
    return ("kernel", lacks) if len(work_rows(profile)) else (recording.grain, [*lacks, NO_KERNELS])

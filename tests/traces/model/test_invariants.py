"""Tests that a valid trace may contain the numbers at each limit, and no number beyond a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.traces.handmade import data_parallel, training
from traces.model.invariants import clear_dangling_references, column_at, column_limits, fault
from traces.model.trace import NONE, MemoryEvents, Trace, Values


def test_a_column_rejects_numbers_outside_its_limits() -> None:
    """GIVEN a column with a number at its limit WHEN the number exceeds the limit by one THEN the message names the column and
    the limits."""
    tried = 0
    for where, (lowest, count) in column_limits(training()).items():
        least, most = (np.iinfo(column_at(training(), where).dtype).min, np.iinfo(column_at(training(), where).dtype).max)
        for last, beyond in ((lowest, lowest - 1), (count - 1, count)):
            trace = training()
            column = column_at(trace, where)
            if not len(column) or not least <= beyond <= most or count <= 0:
                continue
            column[:] = lowest
            column[-1] = beyond
            assert fault(trace) == f"{where} holds {beyond}, outside {lowest}..{count - 1}"
            column[-1] = last
            assert f"{where} holds" not in (fault(trace) or "")
            tried += 1
    assert tried > 60


def test_the_error_names_the_first_of_several_invalid_numbers() -> None:
    trace = training()
    trace.device.launch[[2, 3]] = [len(trace.host), len(trace.host) + 5]
    assert fault(trace) == f"device.launch holds {len(trace.host)}, outside -1..{len(trace.host) - 1}"


def of_last_duration(duration_ns: int) -> Trace:
    trace = training()
    trace.device.duration_ns[:] = 0
    trace.device.start_ns[:] = 0
    trace.device.duration_ns[-1] = duration_ns
    return trace


def test_sums_of_times_must_fit_in_64_bits() -> None:
    most = (1 << 56) - 1  # the largest number that a duration can be
    trace = of_last_duration(most)
    assert fault(trace) is None
    trace.device.start_ns[-1] = (1 << 62) - 1 - most
    assert fault(trace) is None
    trace.device.start_ns[-1] += 1
    assert fault(trace) == "device.start_ns and device.duration_ns end beyond 2**62"
    events = 64  # 64 events of 2**56 bytes have 2**62 bytes
    trace = training()
    trace.memory = MemoryEvents.of(
        thread=[0] * events, device=[0] * events, time_ns=list(range(events)), bytes=[1 << 55] * events, address=[0] * events
    )
    assert fault(trace) is None
    trace.memory.bytes[:] = (1 << 56) - 1
    assert fault(trace) == "memory.bytes adds up to 2**62 or more"  # a 53-bit float rounds each of these numbers to 2**56


def _device(trace: Trace, **fields: Any) -> None:
    trace.devices[0] = replace(trace.devices[0], **fields)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda trace: _device(trace, rank=(1 << 31) - 1), None),
        (lambda trace: _device(trace, rank=1 << 31), "devices.rank contains a number outside 0..2147483647"),
        (lambda trace: _device(trace, rank=-1), "devices.rank contains a number outside 0..2147483647"),
        (lambda trace: _device(trace, index=-(1 << 62) + 1), None),
        (lambda trace: _device(trace, index=-(1 << 62)), "devices.index contains a number beyond 2**62"),
        (lambda trace: trace.problems.update({"lost-launches": 1 << 62}), "problems contains a number beyond 2**62"),
        (lambda trace: trace.strings.texts.append(trace.strings.texts[0]), "a text occurs twice in the string table"),
        (lambda trace: trace.host.parent.__setitem__(0, 0), "host.parent contains a cycle"),
        (lambda trace: trace.host.parent.__setitem__([0, 1], [1, 0]), "host.parent contains a cycle"),
        (lambda trace: trace.host.parent.__setitem__(0, 1), "host.parent contains a cycle"),
        (lambda trace: trace.host.parent.__setitem__([0, 1], [1, NONE]), None),
    ],
)
def test_a_trace_with_an_invalid_header_or_text_or_parent_is_reported_as_faulty(
    changed: Callable[[Trace], None], reason: str | None
) -> None:
    trace = training()
    changed(trace)
    assert fault(trace) == reason


def test_columns_with_the_wrong_length_or_type_are_rejected() -> None:
    trace = training()
    trace.steps.kind = trace.steps.kind[:-1]
    assert fault(trace) == "steps.kind is uint8(3,), not uint8(4,)"


def test_reading_a_truncated_trace_removes_references_to_lost_rows_and_steps() -> None:
    """GIVEN the stages of nn.DataParallel in two or more steps WHEN the first step is lost THEN each remaining stage still
    refers to its phase."""
    trace = data_parallel()
    trace.phases.step[:6] = len(trace.steps)  # the phases of the first step (the forward pass is row 2)
    trace.parts.phase[1] = len(trace.phases)
    trace.parts.phase[2] = NONE
    trace.values = Values.of(step=[0, len(trace.steps) - 1, len(trace.steps)])
    before = trace.parts.phase.tolist()
    phases = len(trace.phases)
    clear_dangling_references(trace)
    assert len(trace.phases) == phases - 6
    assert trace.parts.phase.tolist() == [NONE] * 5 + [row - 6 for row in before[5:]]
    assert trace.values.step.tolist() == [0, len(trace.steps) - 1, NONE]


def test_threads_without_a_name_are_named_after_their_number() -> None:
    """A killed rank has not yet written the names of its latest threads."""
    trace = training()
    named = len(trace.threads)
    trace.host.thread[-1] = named + 1
    clear_dangling_references(trace)
    assert [thread.tid for thread in trace.threads[named:]] == [named, named + 1]
    assert fault(trace) is None
    trace.host.thread[-1] = 1 << 30
    clear_dangling_references(trace)
    assert fault(trace) == "host.thread holds 1073741824, outside 0..65535"


def test_references_to_host_events_that_do_not_exist_become_none() -> None:
    trace = training()
    hosts = len(trace.host)
    trace.host.parent[[1, 2]] = [hosts - 1, hosts]
    trace.device.launch[:2] = [hosts - 1, hosts]
    clear_dangling_references(trace)
    assert trace.host.parent[[1, 2]].tolist() == trace.device.launch[:2].tolist() == [hosts - 1, NONE]


def test_stages_of_a_missing_phase_no_longer_refer_to_it() -> None:
    """GIVEN stages of the phases 0, 1 and 2 WHEN the step of phase 0 is missing THEN phases 1 and 2 become phases 0 and 1."""
    trace = data_parallel()
    trace.parts = trace.parts.take([0, 1, 2, 3])
    trace.parts.phase[:] = [0, 1, 2, NONE]
    trace.phases = trace.phases.take([0, 1, 2])
    trace.phases.step[:] = [len(trace.steps), 0, 0]
    names = trace.phases.name[1:].tolist()
    clear_dangling_references(trace)
    assert trace.parts.phase.tolist() == [NONE, 0, 1, NONE] and trace.phases.name.tolist() == names

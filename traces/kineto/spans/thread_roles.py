"""Finds the role of each CPU thread, such as training loop, autograd engine or data loader.

    renumber, threads = roles_of(threads, names, spans, strings)
    threads[0].role  # "main"
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from traces.kineto.reading.event_columns import Threads
from traces.model.trace import NONE, Column, HostKind, HostSpans, Strings, Thread

STEP_MARK = re.compile(r"ProfilerStep#(\d{1,18})")
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")
BACKWARD_NODE = re.compile(
    r"autograd::engine::evaluate_function|torch::autograd::AccumulateGrad"
    r"|torch\.distributed\.ddp\.reducer::(?!search_unused_parameters)"  # the search is part of the forward pass
    r"|(?:\w+::)*\w*Backward\d*$"
)
_LOADER_THREAD = re.compile(r"pt_data|pin_memory|.*DataLoader", re.IGNORECASE)

_ORDER = ("main", "backward", "loader", "other")


def roles_of(
    threads: Threads, names: dict[tuple[Any, Any], str], spans: HostSpans, strings: Strings, unused: Column
) -> tuple[Column, list[Thread]]:
    """Sort the threads by role, such as "main" or "loader"."""
    count = len(threads)
    known = [""] * count
    for (pid, tid), name in names.items():
        row = threads.find(pid, tid)
        if row is not None:
            known[row] = name
    is_op = spans.kind == HostKind.OP
    is_node = is_op & ((spans.forward_thread > 0) | strings.matching(spans.name, BACKWARD_NODE.match))
    is_annotation = spans.kind == HostKind.ANNOTATION

    def per_thread(mask: Column) -> Column:
        return np.bincount(spans.thread[mask], minlength=count)

    nodes, ops = per_thread(is_node), per_thread(is_op)
    # The main thread is the thread with the most step annotations or, if there are no annotations, with the most optimizer
    # steps.
    evidence = [
        per_thread(is_annotation & strings.matching(spans.name, STEP_MARK.match)),
        per_thread(is_annotation & strings.matching(spans.name, OPTIMIZER_STEP.match)),
        per_thread(is_op & ~is_node & (spans.sequence != NONE)),
        np.where(nodes == 0, ops, 0),
        ops,
        per_thread(np.ones(len(spans), bool)),
    ]
    main = int(np.lexsort(evidence[::-1])[-1]) if count else NONE
    rows = []
    for row, ((_, tid), text) in enumerate(zip(threads.keys, threads.texts, strict=True)):
        name = known[row] or text
        if row == main:
            role = "main"
        elif nodes[row]:
            role = "backward"
        else:
            role = "loader" if _LOADER_THREAD.match(name) else "other"
        rows.append(Thread(0, tid, name, role))
    used = np.setdiff1d(np.arange(count), unused).tolist()
    order = sorted(used, key=lambda row: _ORDER.index(rows[row].role))
    renumber = np.full(count, NONE, "i4")
    renumber[order] = np.arange(len(order))
    return renumber, [rows[row] for row in order]

"""Determines the category of an event, such as matrix multiplication. The category determines the event's colour.

    of_kernel("volta_sgemm_128x64_nn")  # Category.MATRIX

The first rule that matches is used.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from traces.model.trace import BatchKind, Column, DeviceKind, HostKind, Trace


class Category(IntEnum):
    LOADER = 0
    H2D = 1
    FORWARD = 2
    LOSS = 3
    ZERO_GRAD = 4
    BACKWARD = 5
    OPTIMIZER = 6
    OTHER = 7
    MATRIX = 8  # convolutions, matrix products, attention
    ELEMENTWISE = 9
    REDUCTION = 10  # norms, pooling, softmax, sums
    COPY = 11
    COLLECTIVE = 12
    OP = 13
    RUNTIME = 14  # a GPU runtime call that does not wait
    WAIT = 15  # a call that waits for the GPU
    ANNOTATION = 16
    PYTHON = 17
    MEMORY = 18


PHASE_CATEGORIES = {category.name.lower(): category for category in Category if category <= Category.OTHER}

_KERNEL_RULES = (
    (Category.COLLECTIVE, r"nccl|rccl|msccl"),
    (Category.OPTIMIZER, r"multi_tensor|fused_?(adam|sgd|lamb)"),
    (Category.REDUCTION, r"norm|bn_[fb]w|softmax|reduc|pool|loss|argm(ax|in)|scan|sort|topk|welford"),
    (Category.MATRIX, r"gemm|gemv|conv|cudnn|cutlass|wgrad|dgrad|winograd|Cijk_|fmha|flash|attention|matmul|xmma|scudnn|nvjet"),
    (Category.ELEMENTWISE, r"elementwise|triton_poi|fill|copy|index|cat|dropout|embedding|gather|scatter|unary|binary|add|mul"),
)
_RULES = tuple((category, re.compile(pattern, re.IGNORECASE)) for category, pattern in _KERNEL_RULES)
_WAITS = re.compile(r"(cuda|hip|cu)\w*Synchronize|cudaStreamWaitValue")
_PARTS = {
    "scatter": Category.COPY,
    "gather": Category.COPY,
    "gather_backward": Category.COPY,
    "replicate": Category.COLLECTIVE,
    "broadcast_backward": Category.COLLECTIVE,
    "parallel_apply": Category.FORWARD,
}


def of_kernel(name: str) -> Category:
    if name in PHASE_CATEGORIES:
        return PHASE_CATEGORIES[name]
    return next((category for category, rule in _RULES if rule.search(name)), Category.OTHER)


def is_collective(name: str) -> bool:
    return bool(_RULES[0][1].search(name))


def by_name(trace: Trace, names: Column, category: dict[str, Category] | None = None) -> Column:
    used = np.unique(names)
    texts = [trace.strings[int(name)] for name in used]
    found = [of_kernel(text) if category is None else category.get(text, Category.OTHER) for text in texts]
    table = np.full(max(len(trace.strings), 1), Category.OTHER, dtype=np.uint8)
    table[used] = np.array(found, dtype=np.uint8)
    return np.asarray(table[names])


def of_device(trace: Trace, rows: Column) -> Column:
    kinds = trace.device.kind[rows]
    copies = (kinds == DeviceKind.MEMCPY) | (kinds == DeviceKind.MEMSET)
    return np.where(copies, np.uint8(Category.COPY), by_name(trace, trace.device.name[rows]))


def of_host(trace: Trace, rows: Column) -> Column:
    table = np.full(256, Category.OTHER, dtype=np.uint8)
    table[HostKind.OP], table[HostKind.RUNTIME] = Category.OP, Category.RUNTIME
    table[HostKind.ANNOTATION], table[HostKind.PYTHON] = Category.ANNOTATION, Category.PYTHON
    kinds = trace.host.kind[rows]
    calls = kinds == HostKind.RUNTIME
    found = table[kinds]
    waits = trace.strings.matching(trace.host.name[rows[calls]], _WAITS.search)
    found[calls] = np.where(waits, Category.WAIT, Category.RUNTIME)
    return np.asarray(found)


def of_phases(trace: Trace, rows: Column) -> Column:
    return by_name(trace, trace.phases.name[rows], PHASE_CATEGORIES)


def of_parts(trace: Trace, rows: Column) -> Column:
    return by_name(trace, trace.parts.name[rows], _PARTS)


def of_batches(trace: Trace, rows: Column) -> Column:
    return np.where(trace.batches.kind[rows] == BatchKind.WAIT, np.uint8(Category.LOADER), np.uint8(Category.COPY))

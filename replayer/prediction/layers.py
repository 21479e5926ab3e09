"""Finds the layers and the repeated blocks of a recorded network.

    layers = layers_of(trace)               # the layers of one step, in the order of their calls
    layers[0].parameter_bytes, layers[0].block

Note [Blocks]
    A block is a group of layers that the network repeats, such as a transformer layer or a ResNet bottleneck. Modules of the
    same class are blocks, and so are repeated sequences of layers with the same shapes. If nothing repeats, consecutive layers
    form blocks of at least `BUCKET_BYTES`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from replayer.cost_model.constants import BUCKET_BYTES
from replayer.prediction.batch_shapes import Shapes, weights_of
from traces.analyses.modules import called_modules
from traces.figures.measure import begin_in_steps, enclosing, phase_names_at, profiled_steps
from traces.model.trace import NONE, HostKind, Trace, parse_shapes
from traces.names.equivalent_ops import canonical_op
from traces.rates.op_cost import itemsize, rnn_weights

_PRODUCTS_WITH_WEIGHTS = frozenset({"mm", "matmul"})
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})


@dataclass(frozen=True)
class Layer:
    row: int
    weights: Shapes
    parameter_bytes: int
    block: str = ""  # name of the repeated block; empty outside of blocks


def _forward_rows(trace: Trace) -> list[int]:
    host = trace.host
    rows = np.flatnonzero((host.kind == HostKind.OP) & (host.shapes != NONE))
    if len(trace.phases):
        rows = rows[phase_names_at(trace, host.start_ns[rows]) == "forward"]
    for step in reversed(profiled_steps(trace).tolist()):
        own = rows[begin_in_steps(trace, rows, np.array([step]))]
        if len(own):
            rows = own
            break
    found: list[int] = rows[np.argsort(host.start_ns[rows], kind="stable")].tolist()
    return found


def layers_of(trace: Trace) -> list[Layer]:
    # see Note [Blocks]
    host, strings = trace.host, trace.strings
    weights: dict[int, Shapes] = {}
    for row in _forward_rows(trace):
        found = _weights(canonical_op(strings[int(host.name[row])]), parse_shapes(strings[int(host.shapes[row])]))
        if found:
            weights[row] = found
    is_weighted = np.zeros(len(host), dtype=bool)
    is_weighted[list(weights)] = True
    around = np.append(enclosing(host, is_weighted), -1)
    outermost = [row for row in weights if host.parent[row] == NONE or around[host.parent[row]] == NONE]
    layers = [Layer(row, weights[row], sum(map(prod, weights[row])) * _item(trace, row)) for row in outermost]
    names = _blocks_by_module(trace, layers) or _blocks_by_shapes(layers) or _blocks_by_size(layers)
    return [replace(layer, block=name) for layer, name in zip(layers, names, strict=True)]


def _weights(op: str, shapes: Shapes) -> Shapes:
    if op in _PRODUCTS_WITH_WEIGHTS:
        wide = [shape for shape in shapes if len(shape) > 1]
        return (wide[-1],) if len(wide) == 2 and len(wide[-1]) == 2 else ()
    if op == "rnn":
        return rnn_weights(shapes)
    if op == "batch_norm":  # the other inputs are running statistics
        return shapes[1:3]
    return weights_of(op, shapes)


def _item(trace: Trace, row: int) -> int:
    dtypes = trace.strings[int(trace.host.dtypes[row])].split(";") if trace.host.dtypes[row] != NONE else []
    floating = [dtype for dtype in dtypes if "float" in dtype]
    return itemsize(floating[-1] if floating else "float32")


def _blocks_by_module(trace: Trace, layers: Sequence[Layer]) -> list[str]:
    paths, module_of = called_modules(trace)
    of_layer = [int(module_of[layer.row]) if len(module_of) else -1 for layer in layers]
    within: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, module in enumerate(of_layer):
        parts = paths[module].split("/") if module != NONE else []
        for depth, part in enumerate(parts, start=1):
            name = part.rpartition("_")[0]
            if name not in _CONTAINERS and not any(above.rpartition("_")[0] == name for above in parts[: depth - 1]):
                within[name]["/".join(parts[:depth])].append(number)
    repeated = {
        name: modules
        for name, modules in within.items()
        if len(modules) > 1 and max(len({layers[n].weights for n in own}) for own in modules.values()) > 1
    }
    if not repeated:
        return []

    def held(name: str) -> tuple[int, int]:
        numbers = [number for own in repeated[name].values() for number in own]
        depth = min(path.count("/") for path in repeated[name])
        return sum(layers[number].parameter_bytes for number in numbers), -depth

    blocks = [""] * len(layers)
    for path, own in repeated[max(repeated, key=held)].items():
        for number in own:
            blocks[number] = path
    return blocks


def _blocks_by_shapes(layers: Sequence[Layer]) -> list[str]:
    shapes = [layer.weights for layer in layers]
    sums = np.concatenate(([0], np.cumsum([layer.parameter_bytes for layer in layers])))
    best = (0, 0, 0, 0)
    for period in range(2, len(layers) // 2 + 1):
        run = 0
        for at in range(len(layers) - period + 1):
            if at < len(layers) - period and shapes[at] == shapes[at + period]:
                run += 1
                continue
            times = run // period + 1
            if times > 1:
                first = at - run
                best = max(best, (int(sums[first + times * period] - sums[first]), -period, first, times))
            run = 0
    held_bytes, period, first, times = best[0], -best[1], best[2], best[3]
    if not times or held_bytes * 2 < sums[-1]:
        return []
    blocks = [""] * len(layers)
    for number in range(first, first + times * period):
        blocks[number] = f"block {(number - first) // period}"
    return blocks


def _blocks_by_size(layers: Sequence[Layer]) -> list[str]:
    names, number, held_bytes = [], 0, 0
    for layer in layers:
        if held_bytes >= BUCKET_BYTES:
            number, held_bytes = number + 1, 0
        names.append(f"part {number}")
        held_bytes += layer.parameter_bytes
    return names

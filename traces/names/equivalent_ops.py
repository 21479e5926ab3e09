"""Maps different names of the same op to one canonical name.

    canonical_op("aten::cudnn_batch_norm") == canonical_op("aten::native_batch_norm") == "batch_norm"
    canonical_op("aten::add_") == "add"

The order of an op's inputs may differ between two PyTorch releases, so the order of input shapes is ignored.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

from traces.model.layouts import Shape

# Each line begins with the canonical name. `_chunk_cat` is called by `fsdp::chunk_cat` of FSDP2.
_LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
_GROUPS = dict(line.split(": ") for line in _LINES)
_CANONICAL = {name: group for group, names in _GROUPS.items() for name in names.split()}
CANONICAL_OPS = frozenset(_GROUPS)
_ON_TENSOR_LISTS = {"rnn", "rnn_backward", "chunk_cat"}  # all names of these ops take the same lists of large tensors
_LENGTH, _ANONYMOUS = re.compile(r"\d+"), "_GLOBAL__N_1"  # each part of a mangled name begins with its length


def canonical_op(op: str) -> str:
    bare = op.rpartition("::")[2].partition(".")[0]
    if bare in _CANONICAL:
        return _CANONICAL[bare]
    stripped = bare.rstrip("_") or bare
    return _CANONICAL.get(stripped, stripped)


def canonical_shapes(op: str, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return an op's input shapes in a form that does not depend on which name of the op is called, such as `copy_` or
    `_to_copy`. `op` is a canonical name.

    If an op has only one name, repeated shapes are kept, because `_foreach_add_` of 36 tensors does more work than
    `_foreach_add_` of 28 tensors. If an op has several names, repeated shapes are removed, because the number of inputs may
    depend on the name: `copy_` has two inputs, and `_to_copy` has one. Buffers of cuDNN have one dimension, and only some calls
    of an RNN have them.
    """
    if op in _ON_TENSOR_LISTS:
        return tuple(sorted(shapes_with_two_dimensions(shapes)))
    return distinct_shapes(shapes) if op in _GROUPS else tuple(sorted(filter(None, shapes)) or shapes)


def distinct_shapes(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    return tuple(dict.fromkeys(sorted(shapes_with_two_dimensions(shapes))))


def shapes_with_two_dimensions(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shapes with at least two dimensions. If all shapes have fewer dimensions, return the shapes with one
    dimension."""
    return tuple(shape for shape in shapes if len(shape) > 1) or tuple(filter(None, shapes))


def shapes_of_canonical(op: str, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return an op's input shapes in a form that is the same in all PyTorch releases."""
    wide = [shape for shape in shapes if len(shape) > 1]
    return tuple(sorted(wide, key=lambda shape: (-prod(shape), shape))) if op in _GROUPS and wide else shapes


def kernel_text(name: str) -> str:
    """Shorten a kernel's name: remove "void" and the parameters. Mangled names become readable: "_ZN5aiter8rms_normILi4EEEvPT_"
    becomes "aiter::rms_norm<Li4EEEvPT_>"."""
    if name.startswith("_ZN"):
        return _readable(name)
    name = name.removeprefix("void ")
    if not name.endswith(")"):
        return name
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[at], 0)
        if depth == 0:
            return name if at == 0 or name[at - 1] == " " else name[:at]  # keeps "Memcpy HtoD (Pageable -> Device)" unchanged
    return name


def _readable(mangled: str) -> str:
    parts, at = [], len("_ZN")
    while found := _LENGTH.match(mangled, at):
        at = found.end() + int(found[0])
        parts.append("(anonymous namespace)" if mangled[found.end() : at] == _ANONYMOUS else mangled[found.end() : at])
    template, rest = mangled[at : at + 1], mangled[at + 1 :]
    if not parts or template not in ("I", "E"):
        return mangled
    return "::".join(parts) + (f"<{rest}>" if template == "I" else "")

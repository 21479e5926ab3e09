"""Finds out whether the condition of an `if` or `assert` must be true or false to avoid an error in the script.

    assert t0 + dt > t0                    # truth_value_without_error() is True
    if (lengths < 0).any():                # False
        raise ValueError("negative")
    if better:                             # None: neither branch is an error
        save()
"""

from __future__ import annotations

import dis
import sys
from bisect import bisect_right
from functools import cache
from traceback import walk_stack
from types import CodeType, FrameType

CallSite = tuple[CodeType, int]  # a code object, and an instruction's offset in the code

# these instructions may be between a call and the jump that uses the call's result
_BETWEEN = {"CACHE", "TO_BOOL", "NOT_TAKEN"}
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_NO_ERROR = {"StopIteration", "StopAsyncIteration"}


def truth_value_without_error() -> bool | None:
    """Return True or False, whichever lets the script's current `if` or `assert` continue without an error. Return None if both
    values are valid."""
    frame = _innermost_outside(set())
    return None if frame is None else _answer(frame.f_code, frame.f_lasti)


def call_site() -> CallSite | None:
    frame = _innermost_outside({"torch"})
    return None if frame is None else (frame.f_code, frame.f_lasti)


def _innermost_outside(packages: set[str]) -> FrameType | None:
    packages.add(__name__.partition(".")[0])
    frames = (frame for frame, _ in walk_stack(sys._getframe(1)))
    return next((frame for frame in frames if frame.f_globals.get("__name__", "").partition(".")[0] not in packages), None)


@cache
def _answer(code: CodeType, offset: int) -> bool | None:
    instructions = list(dis.get_instructions(code))
    at = {instruction.offset: index for index, instruction in enumerate(instructions)}
    index = bisect_right(list(at), offset) - 1
    if index < 0:
        return None
    if "_IF_" not in instructions[index].opname:
        index = _next(instructions, index)
    jump = instructions[index]
    if not jump.opname.startswith("POP_JUMP_") or not jump.opname.endswith(("_IF_TRUE", "_IF_FALSE")):
        return None
    jumps_if = jump.opname.endswith("_IF_TRUE")
    if_jumped, if_not = _raises(instructions, at[jump.argval]), _raises(instructions, index + 1)
    return None if if_jumped == if_not else jumps_if == if_not


def _next(instructions: list[dis.Instruction], index: int) -> int:
    index += 1
    while instructions[index].opname in _BETWEEN:
        index += 1
    return index


def _raises(instructions: list[dis.Instruction], index: int) -> bool:
    for instruction in instructions[index:]:
        name = instruction.opname
        if name == "LOAD_ASSERTION_ERROR" or name == "RAISE_VARARGS":
            return True
        if instruction.opcode in _JUMPS or name.startswith(("RETURN", "YIELD")) or instruction.argval in _NO_ERROR:
            return False
    return False

"""Prints how a script ended, and why no file was saved.

    say("3 processes used the GPU")                                     # trace: 3 processes used the GPU
    hint_misplaced_option(["train.py", "--strict"], refused=True)
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from typer._click.globals import get_current_context

from tui.argv import ScriptCommand
from tui.formatting import printable
from tui.terminal import is_quiet

SUFFIX = ".msgpack"  # the ending of trace files

if TYPE_CHECKING:
    from traces.script.launch import ChildResult


def say(text: str, *, is_error: bool = False) -> None:
    """Print a line on stderr. With `--quiet`, only errors are printed."""
    if is_error or not is_quiet():
        print(f"trace: {printable(text, colour=False)}", file=sys.stderr)


def explain_empty_run(result: ChildResult, done: str, unused: str) -> None:
    """Explain why a run produced no results. Python prints the error of a script that fails, but not the signal that kills a
    script."""
    if result.returncode:
        if result.ending > 128:
            say(f"nothing was {done}: {ending_text(result.ending)}", is_error=True)
        return
    if result.pid not in result.booted:
        say(f"nothing was {done}: the script's interpreter ignores PYTHONPATH (python -I, -E or -S?)", is_error=True)
    elif not result.triggered:
        say(f"nothing was {done}: the script did not import torch", is_error=True)
    elif result.started:
        say(f"nothing was {done}: the script {unused}", is_error=True)


def ending_text(returncode: int) -> str:
    if 128 < returncode <= 128 + signal.NSIG:
        with suppress(ValueError):  # this number is not a signal, so the script itself chose the exit code
            return f"{signal.Signals(returncode - 128).name} ended the script"
    return f"the script ended with exit code {returncode}"


def hint_misplaced_option(script: list[str], *, refused: bool) -> None:
    context = get_current_context(silent=True)
    if context is None or not isinstance(context.command, ScriptCommand):
        return
    option_names, command = context.command.option_names(context), context.command.name
    for index, word in enumerate(script[1:], start=1):
        ours, equals, value = word.partition("=")
        if ours not in option_names:
            continue
        value = value if equals else "".join(script[index + 1 : index + 2])
        if not refused and not value.endswith(SUFFIX) and (len(ours) == 2 or _mentions(script[0], ours)):
            continue
        say(f"{ours} was passed to the script; put options of trace {command} before the script")
        return


def _mentions(script: str, option: str) -> bool:
    try:
        text = Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return option.lstrip("-").replace("-", "_") in text.replace("-", "_")

"""Lines that the commands which run a script print on stderr beside the script's own: why nothing came of a run, how it ended.

    say("3 processes used the GPU")                                     # trace: 3 processes used the GPU
    hint_misplaced_option(["train.py", "--strict"], refused=True)

A script that failed has printed its error: what follows that is at most a line.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from typer._click.globals import get_current_context

from tui.argv import ScriptCommand
from tui.figures import printable
from tui.terminal import is_quiet

SUFFIX = ".msgpack"  # of trace files

if TYPE_CHECKING:
    from traces.script.launch import ChildResult


def say(text: str, *, is_error: bool = False) -> None:
    """Tell it on stderr; with --quiet only what is an error."""
    if is_error or not is_quiet():
        print(f"trace: {printable(text, colour=False)}", file=sys.stderr)


def explain_empty_run(result: ChildResult, done: str, unused: str) -> None:
    """Why nothing was `done` ("replayed", "recorded"); `unused` is what the script did not do where all else went well.

    A script that failed needs no explanation: its own error says why.
    """
    if result.returncode:
        return
    if result.pid not in result.booted:
        say(f"nothing was {done}: the script's interpreter ignores PYTHONPATH (python -I, -E or -S?)", is_error=True)
    elif not result.triggered:
        say(f"nothing was {done}: the script did not import torch", is_error=True)
    elif result.started:
        say(f"nothing was {done}: the script {unused}", is_error=True)


def ending_text(returncode: int) -> str:
    """How a script ended that did not end well: "the script ended with exit code 3", "SIGTERM ended the script"."""
    if 128 < returncode <= 128 + signal.NSIG:
        with suppress(ValueError):  # no signal has this number: the script chose the code
            return f"{signal.Signals(returncode - 128).name} ended the script"
    return f"the script ended with exit code {returncode}"


def hint_misplaced_option(script: list[str], *, refused: bool) -> None:
    """Where an option that was meant for the running command may stand among the script's: the script has refused its command
    line, the option's value is a trace file, or the script's file does not hold the option's long name."""
    context = get_current_context(silent=True)
    if context is None or not isinstance(context.command, ScriptCommand):
        return
    option_names, command = context.command.option_names(context), context.command.name
    for place, word in enumerate(script[1:], start=1):
        ours, equals, value = word.partition("=")
        if ours not in option_names:
            continue
        value = value if equals else "".join(script[place + 1 : place + 2])
        if not refused and not value.endswith(SUFFIX) and (len(ours) == 2 or _mentions(script[0], ours)):
            continue
        say(f"{ours} stands after the script, so the script got it; options of trace {command} go before the script")
        return


def _mentions(script: str, option: str) -> bool:
    """Whether the file may know the option; what is no file of its own (-m MODULE) may."""
    try:
        text = Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return option.lstrip("-").replace("-", "_") in text.replace("-", "_")

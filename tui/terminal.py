"""Decides how wide, colourful and detailed the output is, based on the terminal and the options -q, -v and --color.

    print(info_text(summary, "v100", **terminal_style(sys.stdout)))
    if not is_quiet(): print("trace: wrote v100.msgpack", file=sys.stderr)
"""

from __future__ import annotations

import os
import shutil
from typing import Literal, TextIO, TypedDict

from typer._click.globals import get_current_context

# names of options in the command's context
QUIET, VERBOSE, COLOUR = "trace.quiet", "trace.verbose", "trace.colour"


When = Literal["auto", "always", "never"]  # values of --color


class TerminalStyle(TypedDict):
    width: int
    colour: bool


def terminal_style(stream: TextIO) -> TerminalStyle:
    """Return the maximum width of text on a stream, and whether colours are allowed. Text for a file or a pipe has 100 columns,
    and has colours only with `--color always`. `--color` takes precedence over NO_COLOR (no-color.org)."""
    terminal = stream.isatty()
    choice = _asked(COLOUR, "auto")
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    colour = choice == "always" or (choice == "auto" and terminal and not plain)
    return TerminalStyle(width=shutil.get_terminal_size((100, 24)).columns if terminal else 100, colour=colour)


def is_quiet() -> bool:
    return bool(_asked(QUIET, False))


def is_verbose() -> bool:
    return bool(_asked(VERBOSE, False))


def _asked(key: str, default: object) -> object:
    context = get_current_context(silent=True)
    return default if context is None else context.find_root().meta.get(key, default)

"""How text is to look: what the terminal that it goes to can show, and what was asked for by -q, -v and --color.

    print(info_text(summary, "v100", **look(sys.stdout)))
    if not is_quiet(): print("trace: wrote v100.msgpack", file=sys.stderr)

What was asked for is in the context of the running command (`tui.help` puts it there); outside of one, nothing was.
"""

from __future__ import annotations

import os
import shutil
from typing import Literal, TextIO, TypedDict

from typer._click.globals import get_current_context

# Keys of the command's context.
QUIET, VERBOSE, COLOUR = "trace.quiet", "trace.verbose", "trace.colour"


When = Literal["auto", "always", "never"]  # what --color may say


class Look(TypedDict):
    width: int
    colour: bool


def look(stream: TextIO) -> Look:
    """How text on `stream` is to look. Piped text is 100 wide and plain; --color is obeyed, else NO_COLOR (no-color.org)."""
    terminal = stream.isatty()
    asked = _asked(COLOUR, "auto")
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    colour = asked == "always" or (asked == "auto" and terminal and not plain)
    return Look(width=shutil.get_terminal_size((100, 24)).columns if terminal else 100, colour=colour)


def is_quiet() -> bool:
    """Only results and errors are wanted."""
    return bool(_asked(QUIET, False))


def is_verbose() -> bool:
    """All that there is to say is wanted."""
    return bool(_asked(VERBOSE, False))


def _asked(key: str, default: object) -> object:
    context = get_current_context(silent=True)
    return default if context is None else context.find_root().meta.get(key, default)

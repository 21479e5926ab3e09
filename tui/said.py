"""What the commands that run a script say beside it, on stderr: why nothing came of it, and where options go.

    say("3 processes used the GPU")
    say_where_options_go(["train.py", "--strict"], {"--strict"}, "replay")
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traces.launch import ChildResult


def say(text: str) -> None:
    print(f"trace: {text}", file=sys.stderr)


def say_why_nothing(result: ChildResult, done: str, unused: str) -> None:
    """Why nothing was `done` ("replayed", "recorded"); `unused` is what the script did not do where all else went well."""
    if result.pid not in result.booted:
        say(f"nothing was {done}: the script's interpreter ignores PYTHONPATH (python -I, -E or -S?)")
    elif not result.triggered:
        say(f"nothing was {done}: the script did not import torch")
    elif result.started:
        say(f"nothing was {done}: the script {unused}")


def say_where_options_go(script: list[str], option_names: Collection[str], command: str) -> None:
    """The script has refused its command line, perhaps because of an option that was meant for us."""
    ours = next((word.partition("=")[0] for word in script[1:] if word.partition("=")[0] in option_names), None)
    if ours is not None:
        say(f"{ours} stands after the script, so the script got it; options of trace {command} go before the script")

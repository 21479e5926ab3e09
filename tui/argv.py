"""Which words of the command line are ours and which are the script's.

    trace replay [our options] SCRIPT [anything: the script's]
    trace replay [our options] -m MODULE [anything: the module's]
    trace replay [our options] -- [what would follow `python`]

Options before the script are ours, and the first word that is none is the script. What follows is the script's to the
letter, also `-o` and `--help`, with one exception that people's habits ask for: if no `--trace` was given before the
script, the first `--trace FILE` or `--trace=FILE` after it is ours. After a `--` nothing is. Names of options are
never abbreviated.

    split(["-o", "r.msgpack", "train.py", "--trace", "v100", "-o", "x"], {"-o": True, "--trace": True})
    # Split(ours=["-o", "r.msgpack", "--trace", "v100"], script=["train.py", "-o", "x"])

Stock click settings get this wrong both ways: with interspersed arguments they take the script's `-t5` and `--help`,
without them `--trace` after the script is lost and a `--` is left over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import typer
from typer._click.exceptions import UsageError
from typer.core import TyperOption

from tui.help import Command

if TYPE_CHECKING:
    from typer._click.core import Context  # the overridden method's own; typer exports only a subclass

# The one option of ours that may follow the script.
FOLLOWER = "--trace"


class Split(NamedTuple):
    ours: list[str]  # options of ours with their values
    script: list[str]  # what would follow `python`: a script or `-m` and a module, then the script's arguments


def split(words: list[str], options: Mapping[str, bool]) -> Split:
    """Part the words; `options` says for each name of an option of ours whether a value follows it."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        if word == "--":
            return Split(words[:at], words[at + 1 :])
        if word.startswith("-m"):
            return _after_script(words[:at], words[at:], 2 if word == "-m" else 1)
        at += 2 if options.get(word, False) else 1
    return _after_script(words[:at], words[at:], 1)


def _after_script(ours: list[str], script: list[str], names: int) -> Split:
    """`names` words of `script` name what to run; among the arguments after them the follower is looked for."""
    if any(word == FOLLOWER or word.startswith(FOLLOWER + "=") for word in ours):
        return Split(ours, script)
    for at in range(names, len(script)):
        if script[at] == "--":
            break
        if script[at] == FOLLOWER:
            if at + 1 == len(script):
                raise typer.BadParameter("a FILE must follow it", param_hint=FOLLOWER)
            return Split(ours + script[at : at + 2], script[:at] + script[at + 2 :])
        if script[at].startswith(FOLLOWER + "="):
            return Split([*ours, script[at]], script[:at] + script[at + 1 :])
    return Split(ours, script)


class ScriptCommand(Command):
    """A command that runs a script: its last parameter takes the script and all that is the script's."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        names = self.option_names(ctx)
        ours, script = split(args, names)
        if script == ["-m"]:
            raise typer.BadParameter("a MODULE must follow it", param_hint="-m")
        if not script and FOLLOWER in names and not {FOLLOWER, "-h", "--help"} & {word.partition("=")[0] for word in ours}:
            raise UsageError(f"Missing SCRIPT and {FOLLOWER} T", ctx)
        return super().parse_args(ctx, [*ours, "--", *script] if script else ours)

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        return ["[OPTIONS]", "{SCRIPT | -m MODULE} [ARGUMENTS]..."]

    def option_names(self, ctx: Context) -> dict[str, bool]:
        """Every name of an option of ours, and whether a value follows it."""
        options = [param for param in self.get_params(ctx) if isinstance(param, TyperOption)]
        return {name: not option.is_flag for option in options for name in option.opts}

"""Separates the options of `trace` from the user's script and its arguments.

    trace replay [our options] SCRIPT [arguments of the script]
    trace replay [our options] -m MODULE [arguments of the module]
    trace replay [our options] -c CODE [arguments of the code]
    trace replay [our options] -- [words that follow `python`]

    split(["-o", "r.msgpack", "train.py", "--trace", "v100", "-o", "x"], {"-o": True, "--trace": True})
    # Split(ours=["-o", "r.msgpack", "--trace", "v100"], script=["train.py", "-o", "x"])

All arguments after the script's name are passed to the script. `trace replay` and other commands with the option `--trace FILE`
also find this option after the script's name. The word `python` before the script's name is ignored. Some options of `python`,
such as `-u`, may come before the script's name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer
from typer._click.exceptions import UsageError
from typer.core import TyperOption

from tui.help import Command
from tui.terminal import is_quiet

if TYPE_CHECKING:
    from typer._click.core import Context  # needed for an overridden method; typer exports only a subclass

# the only option of `trace` that may come after the script
FOLLOWER = "--trace"
# options of `python` that take the place of the script's name: a module, or Python code
_PROGRAMS = ("-m", "-c")
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
# these files show that an installer created the environment for a single tool
_TOOL_FILES = {"uv": "uv-receipt.toml", "pipx": "pipx_metadata.json"}


class Split(NamedTuple):
    ours: list[str]  # trace options and their values
    script: list[str]  # the words after `python`: a script or `-m` and a module, then the arguments


def split(words: list[str], options: Mapping[str, bool]) -> Split:
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        if word == "--":
            return Split(words[:at], _without_python(words[at + 1 :]))
        # options of `python`; no option of `trace` begins like these
        if word.startswith((*_PROGRAMS, "-u", "-O", "-B", "-W", "-X")):
            return script_words(words[:at], words[at:], options)
        at += 2 if options.get(word, False) else 1
    return script_words(words[:at], _without_python(words[at:]), options)


def _without_python(script: list[str]) -> list[str]:
    is_python = bool(script) and _PYTHON.fullmatch(script[0]) is not None and not Path(script[0]).is_file()
    return script[1:] if is_python else script


def script_words(ours: list[str], script: list[str], options: Mapping[str, bool]) -> Split:
    if FOLLOWER not in options or any(word.partition("=")[0] == FOLLOWER for word in ours):
        return Split(ours, script)
    names = 2 if script and script[0] in _PROGRAMS else 1  # a script's path, or -m and the name of a module
    for at in range(names, len(script)):
        if script[at] == "--":
            break
        if script[at] == FOLLOWER:
            if at + 1 == len(script):
                raise typer.BadParameter("needs a FILE", param_hint=FOLLOWER)
            return Split(ours + script[at : at + 2], script[:at] + script[at + 2 :])
        if script[at].startswith(FOLLOWER + "="):
            return Split([*ours, script[at]], script[:at] + script[at + 1 :])
    return Split(ours, script)


class ScriptCommand(Command):
    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell wants to complete an unfinished command line
            return super().parse_args(ctx, args)
        names = self.option_names(ctx)
        ours, script = split(args, names)
        if len(script) == 1 and script[0] in _PROGRAMS:
            raise typer.BadParameter("needs a MODULE" if script == ["-m"] else "needs CODE", param_hint=script[0])
        given = {word.partition("=")[0] for word in ours}
        if not script and FOLLOWER in names and not {FOLLOWER, "--gpu", "-h", "--help"} & given:
            raise UsageError(f"Missing SCRIPT and {FOLLOWER} T", ctx)
        return super().parse_args(ctx, [*ours, "--", *script] if script else ours)

    def invoke(self, ctx: Context) -> object:
        if not is_quiet() and (note := tool_environment_note()):
            print(f"trace: {note}", file=sys.stderr)
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        return ["[OPTIONS]", "{SCRIPT | -m MODULE} [ARGUMENTS]..."]

    def option_names(self, ctx: Context) -> dict[str, bool]:
        options = [param for param in self.get_params(ctx) if isinstance(param, TyperOption)]
        return {name: not option.is_flag for option in options for name in option.opts}


def tool_environment_note() -> str:
    for installer, file in _TOOL_FILES.items():
        if (Path(sys.prefix) / file).exists():
            return (
                f"{installer} installed trace into a separate environment, and scripts can import only the packages there;"
                " to use your own torch and packages, install trace-replay into your environment with pip"
            )
    return ""

r"""Implements the `--help` pages of all commands, and the options -q, -v and --color.

    app = Commands(...)

    @app.command(rich_help_panel=LOOK, epilog="$ trace info v100.msgpack\n\nWhat goes under the options.")
    def info(trace: str, json: Annotated[bool, typer.Option("--json", rich_help_panel="Output")] = False) -> int: ...

Typer's own help pages are slow, because they import the library rich.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import sys
from collections.abc import Callable, Iterable
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer._click.core import Context
from typer._click.formatting import wrap_text
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tui.formatting import paint
from tui.terminal import COLOUR, QUIET, VERBOSE, When, terminal_style

if TYPE_CHECKING:
    from typer._click.core import Parameter
    from typer._click.formatting import HelpFormatter

Function = TypeVar("Function", bound=Callable[..., Any])
Options = TypeVar("Options")

RUN, LOOK, FILES, CHECK = "Record and replay", "Look and compare", "Files and other tools", "This machine and CI"
_OTHERS = "Commands"
_GROUPS = (RUN, LOOK, FILES, CHECK, _OTHERS)  # groups in the order of `trace --help`
_WIDEST = 140  # columns; longer lines are hard to read
_LABELS = 34  # columns; after a longer option name, the help text begins on the next line
_COMMON = "Options of every command"
HELP_NAMES = ["-h", "--help"]
COMMON = ("-q", "--quiet", "-v", "--verbose", "--color")  # the names of these options


def _remember(key: str) -> Callable[[typer.Context, Any], Any]:
    def remember(context: typer.Context, value: Any) -> Any:
        context.find_root().meta[key] = value
        return value

    return remember


def _option(key: str, text: str, *names: str) -> Any:
    return typer.Option(*names, expose_value=False, callback=_remember(key), rich_help_panel=_COMMON, help=text)


def _common(
    quiet: Annotated[bool, _option(QUIET, "Print only results and errors.", "-q", "--quiet")] = False,
    verbose: Annotated[
        bool, _option(VERBOSE, "Print all sections, and how long each part of the work took.", "-v", "--verbose")
    ] = False,
    color: Annotated[
        When, _option(COLOUR, "Colour: if stdout is a terminal and NO_COLOR is not set (auto), always, or never.", "--color")
    ] = "auto",
) -> None:
    """Declare the options that all commands have."""


class Command(TyperCommand):
    def get_params(self, ctx: Context) -> list[Parameter]:
        if not any(param.name == "quiet" for param in self.params):
            holder = typer.Typer(add_completion=False, rich_markup_mode=None)
            holder.command()(_common)
            self.params = [*self.params, *typer.main.get_command(holder).params]
        return super().get_params(ctx)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        _write_page(self, ctx, formatter)


class Group(TyperGroup):
    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        _write_page(self, ctx, formatter)


class Commands(typer.Typer):
    def __init__(self, **facts: Any) -> None:
        # rich is not used, because its import is slow
        super().__init__(cls=Group, rich_markup_mode=None, context_settings={"help_option_names": HELP_NAMES}, **facts)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **facts: Any
    ) -> Callable[[Function], Function]:
        return super().command(name, cls=cls or Command, **facts)

    def with_command(self, word: str) -> Commands:
        """Return an app with only the command `word`, because creating all commands takes long. If `word` is not a command,
        return the whole app."""
        found = [one for one in self.registered_commands if word in (one.name, getattr(one.callback, "__name__", ""))]
        if not found:
            return self
        copied = copy(self)
        copied.registered_commands, copied.registered_groups = found, []
        return copied


def from_options(options: Callable[..., Options]) -> Callable[[Callable[[Options], int]], Callable[..., int]]:
    """Decorate a command. Each field of the dataclass `options` becomes an option of the command."""

    def declared(function: Callable[[Options], int]) -> Callable[..., int]:
        @functools.wraps(function)
        def command(**given: Any) -> int:
            return function(options(**given))

        command.__signature__ = inspect.signature(options, eval_str=True)  # type: ignore[attr-defined]
        return command

    return declared


def help_text(command: TyperCommand | TyperGroup, name: str, width: int) -> str:
    context = Context(command, info_name=name, terminal_width=width, help_option_names=HELP_NAMES)
    formatter = context.make_formatter()
    _write_sized_page(command, context, formatter, width, colour=False)
    return formatter.getvalue()


def _write_page(command: Command | Group, ctx: Context, formatter: HelpFormatter) -> None:
    width = min(shutil.get_terminal_size((100, 24)).columns, _WIDEST)
    _write_sized_page(command, ctx, formatter, width, terminal_style(sys.stdout)["colour"])


def _write_sized_page(
    command: TyperCommand | TyperGroup, ctx: Context, formatter: HelpFormatter, width: int, colour: bool
) -> None:
    formatter.width = width
    usage, head = f"{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}", paint("Usage: ", "bold", colour=colour)
    formatter.write(wrap_text(usage, formatter.width, head, " " * len("Usage: ")) + "\n")
    _write_text(command.help or "", formatter)
    if isinstance(command, TyperGroup):
        known = command.commands.items()
        commands = [(name, of) for name, of in known if isinstance(of, TyperCommand | TyperGroup) and not of.hidden]
        entries = [(of.rich_help_panel or _OTHERS, name, _first_sentence(of.help or "")) for name, of in commands]
        _write_sections(sorted(entries, key=lambda entry: _GROUPS.index(entry[0])), formatter, colour)
    shown = [param for param in command.get_params(ctx) if not getattr(param, "hidden", False)]
    _write_sections([_entry(param, ctx) for param in shown], formatter, colour)
    lines = inspect.cleandoc(command.epilog or "").splitlines()
    examples = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    if examples:
        formatter.write("\n".join(["", paint("Examples:", "bold", colour=colour), *(f"  {line}" for line in examples), ""]))
    _write_text("\n".join(line for line in lines if not line.startswith("$ ")), formatter)


def _write_text(text: str, formatter: HelpFormatter) -> None:
    if paragraphs := inspect.cleandoc(text).partition("\f")[0]:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(paragraphs)


def _write_sections(entries: Iterable[tuple[str, str, str]], formatter: HelpFormatter, colour: bool) -> None:
    found: dict[str, list[tuple[str, str]]] = {}
    for section, label, text in entries:
        found.setdefault(section, []).append((paint(label, "blue", colour=colour), " ".join(text.split())))
    for section in sorted(found, key=lambda name: name == _COMMON):
        formatter.write_paragraph()
        formatter.write(paint(f"{section}:", "bold", colour=colour) + "\n")
        with formatter.indentation():
            formatter.write_dl(found[section], col_max=_LABELS)


def _entry(param: Parameter, ctx: Context) -> tuple[str, str, str]:
    record = param.get_help_record(ctx) or ("", "")
    if isinstance(param, TyperArgument):
        return "Arguments", param.metavar or record[0], param.help or ""
    panel = param.rich_help_panel if isinstance(param, TyperOption) else None
    if param.name == "help" and not isinstance(ctx.command, TyperGroup):
        panel = _COMMON
    return panel or "Options", record[0], record[1]


def _first_sentence(text: str) -> str:
    sentence = inspect.cleandoc(text).partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")
    return sentence if sentence.endswith("?") else sentence + "."

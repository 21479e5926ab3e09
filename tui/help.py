"""What all commands share: `--help` in groups, with examples, as wide as the terminal and in colour; and -q, -v and --color.

    app = Commands(...)

    @app.command(rich_help_panel=LOOK, epilog="$ trace info v100.msgpack\n\nWhat goes under the options.")
    def info(trace: str, json: Annotated[bool, typer.Option("--json", rich_help_panel="Output")] = False) -> int: ...

Lines of an epilog that begin with "$ " are examples. Typer's own groups need rich, which takes longer to import than all else
that `trace --help` does.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tui.figures import paint
from tui.terminal import COLOUR, QUIET, VERBOSE, When, look

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter
    from typer._click.formatting import HelpFormatter

Function = TypeVar("Function", bound=Callable[..., Any])
Options = TypeVar("Options")

RUN, LOOK, FILES, CHECK = "Record and replay", "Look and compare", "Files and other tools", "This machine and CI"
_GROUPS = (RUN, LOOK, FILES, CHECK)  # of `trace --help`, in this order; a command of none is among the files
_WIDEST = 140  # columns: longer lines are hard to read
_LABELS = 34  # columns of option names before their help begins on the next line
_COMMON = "On every command"
COMMON = ("-q", "--quiet", "-v", "--verbose", "--color")  # the names of these options


def _remember(key: str) -> Callable[[typer.Context, Any], Any]:
    """An option's callback that leaves its value where `tui.terminal` finds it."""

    def remember(context: typer.Context, value: Any) -> Any:
        context.find_root().meta[key] = value
        return value

    return remember


def _common(
    quiet: Annotated[
        bool,
        typer.Option(
            "-q", "--quiet", expose_value=False, callback=_remember(QUIET), rich_help_panel=_COMMON,
            help="Only results and errors.",
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "-v", "--verbose", expose_value=False, callback=_remember(VERBOSE), rich_help_panel=_COMMON,
            help="All sections of a report, and how long each part of the work took.",
        ),
    ] = False,
    color: Annotated[
        When,
        typer.Option(
            "--color", expose_value=False, callback=_remember(COLOUR), rich_help_panel=_COMMON,
            help="Colour: on a terminal without NO_COLOR; or always, or never.",
        ),
    ] = When.auto,
) -> None:  # fmt: skip
    """A command of these options alone, from which the others get them."""


class Command(TyperCommand):
    """A command with the common options."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        if not any(param.name == "quiet" for param in self.params):
            holder = typer.Typer(add_completion=False, rich_markup_mode=None)
            holder.command()(_common)
            self.params = [*self.params, *typer.main.get_command(holder).params]
        return super().get_params(ctx)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        formatter.write(_page(self, ctx))


class Group(TyperGroup):
    """`trace` itself, and commands with commands of their own."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        formatter.write(_page(self, ctx))


class Commands(typer.Typer):
    """A Typer whose commands are `Command`s unless they say otherwise."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **facts: Any
    ) -> Callable[[Function], Function]:
        return super().command(name, cls=cls or Command, **facts)


def from_options(options: Callable[..., Options]) -> Callable[[Callable[[Options], int]], Callable[..., int]]:
    """Makes a command's function of one that takes a dataclass of options (`tui.options`): its parameters are the fields."""

    def declared(function: Callable[[Options], int]) -> Callable[..., int]:
        @functools.wraps(function)
        def command(**given: Any) -> int:
            return function(options(**given))

        command.__signature__ = inspect.signature(options, eval_str=True)  # type: ignore[attr-defined]
        return command

    return declared


def _page(command: Command | Group, ctx: Context) -> str:
    """The whole page, for the terminal that stdout is."""
    seen = look(sys.stdout)
    width = min(shutil.get_terminal_size((100, 24)).columns, _WIDEST)
    page = _HelpPage(width, seen["colour"])
    page.usage(ctx.command_path, " ".join(command.collect_usage_pieces(ctx)))
    page.text(command.help or "")
    if isinstance(command, Group):
        known = command.commands.items()
        commands = [(name, of) for name, of in known if isinstance(of, TyperCommand | Group) and not of.hidden]
        entries = [(of.rich_help_panel or FILES, name, _first_sentence(of.help or "")) for name, of in commands]
        page.sections(sorted(entries, key=lambda entry: _GROUPS.index(entry[0])))
    page.sections(_entry(param, ctx) for param in command.get_params(ctx) if not getattr(param, "hidden", False))
    page.epilog(command.epilog or "")
    return "\n".join(page.lines) + "\n"


def _entry(param: Parameter, ctx: Context) -> tuple[str, str, str]:
    """Group, label and help of an option or argument."""
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


class _HelpPage:
    def __init__(self, width: int, colour: bool) -> None:
        self.lines: list[str] = []
        self._width, self._colour = width, colour

    def usage(self, path: str, pieces: str) -> None:
        head = "Usage: "
        lines = textwrap.wrap(f"{path} {pieces}", self._width - len(head))
        self.lines += [self._bold(head) + lines[0], *(" " * len(head) + line for line in lines[1:])]

    def text(self, text: str) -> None:
        for paragraph in inspect.cleandoc(text).partition("\f")[0].split("\n\n"):
            if paragraph:
                self.lines += ["", *textwrap.wrap(paragraph, self._width, initial_indent="  ", subsequent_indent="  ")]

    def sections(self, entries: Iterable[tuple[str, str, str]]) -> None:
        """Entries of (section, label, help); sections in the order of their first entry, the common one last."""
        found: dict[str, list[tuple[str, str]]] = {}
        for section, label, text in entries:
            found.setdefault(section, []).append((label, text))
        for section in sorted(found, key=lambda name: name == _COMMON):
            rows = found[section]
            column = min(max(len(label) for label, _ in rows), _LABELS) + 2
            self.lines += ["", self._bold(f"{section}:")]
            for label, text in rows:
                told = textwrap.wrap(" ".join(text.split()), max(self._width - column - 2, 20)) or [""]
                padded = paint(label, "blue", colour=self._colour) + " " * (column - len(label))
                if len(label) + 2 > column:
                    self.lines.append(f"  {paint(label, 'blue', colour=self._colour)}")
                    padded = " " * column
                self.lines.append(f"  {padded}{told[0]}".rstrip())
                self.lines += [" " * (column + 2) + line for line in told[1:]]

    def epilog(self, text: str) -> None:
        lines = inspect.cleandoc(text).splitlines()
        examples = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        if examples:
            self.lines += ["", self._bold("Examples:"), *(f"  {example}" for example in examples)]
        self.text("\n".join(line for line in lines if not line.startswith("$ ")))

    def _bold(self, text: str) -> str:
        return paint(text, "bold", colour=self._colour)

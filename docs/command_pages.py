"""Writes docs/commands/NAME.md for every command, from its `--help` and the notes in docs/command_notes/NAME.md.

    python docs/command_pages.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup

from tui.cli import app
from tui.help import help_text

DOCS = Path(__file__).resolve().parent
WIDTH = 96  # width of the help text


def commands() -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """Yield every command with its full name, such as `library show`."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    for name, command in sorted(group.commands.items()):
        assert isinstance(command, TyperCommand | TyperGroup)
        yield name, command
        if isinstance(command, TyperGroup):
            for inner, of in sorted(command.commands.items()):
                assert isinstance(of, TyperCommand)
                yield f"{name} {inner}", of


def examples(command: TyperCommand | TyperGroup) -> list[str]:
    lines = inspect.cleandoc(command.epilog or "").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def page(name: str, command: TyperCommand | TyperGroup) -> str:
    """Return the page of a top-level command. Subcommands are sections of the page."""
    parts = [f"# trace {name}", "", "```text", help_text(command, f"trace {name}", WIDTH).strip(), "```"]
    if isinstance(command, TyperGroup):
        for inner, of in sorted(command.commands.items()):
            assert isinstance(of, TyperCommand)
            parts += ["", f"## trace {name} {inner}", "", "```text"]
            parts += [help_text(of, f"trace {name} {inner}", WIDTH).strip(), "```"]
    notes = DOCS / "command_notes" / f"{name}.md"
    if notes.exists():
        parts += ["", notes.read_text(encoding="utf-8").strip()]
    return "\n".join(parts) + "\n"


def pages() -> dict[Path, str]:
    return {DOCS / "commands" / f"{name}.md": page(name, command) for name, command in commands() if " " not in name}


def main() -> None:
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

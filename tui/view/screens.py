"""The screens that open over the timeline: details, help, search, going to a step, export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tui.figures import count_text, fit
from tui.view.categories import Category
from tui.view.cells import INSTANT, SIGNS, Sign
from tui.view.keys import KEYS, MOUSE
from tui.view.palette import COLOURS
from tui.view.scene import short_name
from tui.view.search import Hit

_BOX = """
{name} {{ align: center middle; }}
{name} > * {{
    width: {width}; max-width: 96%; max-height: 90%; height: auto;
    border: round #7d8a97; padding: 0 1; background: #1a2026;
}}
"""


class TextScreen(ModalScreen[None]):
    """Lines to be read; any of Esc, Enter, q and ? closes it."""

    CSS = _BOX.format(name="TextScreen", width=84)
    BINDINGS = [("escape,enter,q,question_mark", "dismiss", "close")]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = self._title
            box.border_subtitle = "Esc closes"
            yield Static(self._text)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def help_text() -> Text:
    """All keys, and what colours and signs mean."""
    text = Text()
    for key in KEYS:
        text.append(f"{key.shown:>6}  ", "bold")
        text.append(key.help + "\n")
    for gesture, does in MOUSE:
        text.append(f"{gesture:>6}  ", "bold")
        text.append(does + "\n")
    text.append("\nHeight: the share of a column's time in which the row is busy. Names stand where there is room.\n")
    text.append(f"{INSTANT} is an event without any length.\n")
    text.append(f"\nDifferences: {SIGNS[Sign.MORE]} ", "")
    text.append("the replay is busier", "#ff5c57")
    text.append(f", {SIGNS[Sign.LESS]} ")
    text.append("less busy", "#57a5ff")
    text.append(f", {SIGNS[Sign.ALIKE]} the same, {SIGNS[Sign.OTHER_WORK]} ")
    text.append("as busy with something else", "#e6d25a")
    text.append(".\n\n")
    for category in Category:
        text.append("██ ", COLOURS[category])
        text.append(category.name.lower().replace("_", " ").ljust(13))
        if category % 5 == 4:
            text.append("\n")
    return text


class PromptScreen(ModalScreen[str | None]):
    """Asks for one line. Esc gives None."""

    CSS = _BOX.format(name="PromptScreen", width=60)
    BINDINGS = [("escape", "dismiss", "close")]

    def __init__(self, title: str, hint: str, value: str = "") -> None:
        super().__init__()
        self._title = title
        self._hint = hint
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            yield Input(self._value, placeholder=self._hint)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class SearchScreen(ModalScreen[Hit | None]):
    """Type a part of a name, choose one of those that have it."""

    CSS = (
        _BOX.format(name="SearchScreen", width=84)
        + "SearchScreen OptionList { height: auto; max-height: 14; border: none; background: #1a2026; }"
    )
    BINDINGS = [("escape", "dismiss", "close"), ("down", "into_list", "choose")]

    def __init__(self, search: Callable[[str], list[Hit]], words: tuple[str, ...], text: str = "") -> None:
        super().__init__()
        self._search = search
        self._words = words
        self._text = text
        self._hits: list[Hit] = []

    @property
    def text(self) -> str:
        return self.query_one(Input).value

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "search: Enter goes to the first, ↓ chooses"
            yield Input(self._text, placeholder="part of the name of a kernel, op, phase or collective; or: step 5")
            yield OptionList()

    def on_mount(self) -> None:
        self._fill(self._text)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def _fill(self, text: str) -> None:
        self._hits = self._search(text)
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(Text(self._line(hit))) for hit in self._hits])

    def _line(self, hit: Hit) -> str:
        side = f"{self._words[hit.side]:9}" if len(self._words) > 1 else ""
        times = f"{count_text(hit.count)} x" if hit.count else ""
        return f"{hit.what:10} {side} {times:>8}  {fit(short_name(hit.name), 46)}"

    def action_into_list(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = 0 if self._hits else None
        options.focus()

    def on_input_submitted(self) -> None:
        self.dismiss(self._hits[0] if self._hits else None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._hits[event.option_index])


def export_hint(default: Path) -> str:
    return f"NAME.svg: a picture; NAME.json.gz: a Chrome trace. e.g. {default}"

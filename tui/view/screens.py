"""Defines the dialogs of the timeline app, such as search and help."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static, TabbedContent, TabPane, Tabs
from textual.widgets.option_list import Option

from tui.formatting import count_text, fit
from tui.view.keys import KEYS, MOUSE, TABLE_KEYS
from tui.view.scene.categories import Category
from tui.view.scene.character_rows import CUT, INSTANT, SIGN_WORDS, SIGNS, Sign
from tui.view.scene.short_names import short_name
from tui.view.search import Hit
from tui.view.timeline.palette import Palette
from tui.view.timeline.status import category_text

_BOX = """
{name} {{ align: center middle; }}
{name} > * {{
    width: {width}; max-width: 96%; max-height: 90%; height: auto;
    border: round $foreground 50%; padding: 0 1; background: $surface;
    border-title-color: $foreground; border-subtitle-color: $foreground;
}}
"""


class TextScreen(ModalScreen[None]):
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


class HelpScreen(ModalScreen[None]):
    CSS = (
        _BOX.format(name="HelpScreen", width=124).replace("90%", "100%")
        + "HelpScreen TabbedContent { height: auto; } HelpScreen Tabs { height: 2; } HelpScreen TabPane { padding: 0 1; }"
        + "HelpScreen Tab { color: $foreground 80%; }"
    )
    BINDINGS = [
        ("escape,enter,q,question_mark", "dismiss", "close"),
        ("left", "page(-1)", "previous page"),
        ("right", "page(1)", "next page"),
    ]

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._pages = help_pages(palette)

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "help"
            box.border_subtitle = "Esc closes"
            if self.app.size.width >= _GLANCE[0] and self.app.size.height >= _GLANCE[1]:
                *pages, legend = (Text.assemble((name + "\n", "bold underline"), page) for name, page in self._pages)
                grid = Table.grid(padding=(0, 3))
                grid.add_row(*(Text.assemble(*pages[column::3]) for column in range(3)))
                yield Static(grid)
                yield Static(legend)
                return
            box.border_subtitle = "← → turn pages, Esc closes"
            with TabbedContent():
                for number, (name, page) in enumerate(self._pages):
                    with TabPane(name, id=f"page-{number}"):
                        yield Static(page)

    def on_mount(self) -> None:
        for tabs in self.query(Tabs):
            tabs.can_focus = False
        self.set_focus(None)

    def action_page(self, by: int) -> None:
        for tabs in self.query(TabbedContent):
            number = int(tabs.active.removeprefix("page-"))
            tabs.active = f"page-{(number + by) % len(self._pages)}"


_GLANCE = (120, 36)


def help_pages(palette: Palette) -> list[tuple[str, Text]]:
    pages = {key.group: Text() for key in KEYS}
    for key in KEYS:
        _add_key(pages[key.group], key.shown, key.help)
    for name, gestures in (("mouse", MOUSE), ("in tables", TABLE_KEYS)):
        pages[name] = Text()
        for shown, does in gestures:
            _add_key(pages[name], shown, does)
    return [*pages.items(), ("legend", _legend(palette))]


def _add_key(page: Text, shown: str, does: str) -> None:
    page.append(f"{shown:>6}  ", "bold")
    page.append(does + "\n")


def _legend(palette: Palette) -> Text:
    text = Text("Height: busy share of a column. Colours are stacked by their shares. Names appear where there is room.\n")
    text.append(f"{INSTANT} an event without duration; {CUT} the event continues after a gap\n")
    text.append("Differences of the second trace from the first: ")
    for sign, words in SIGN_WORDS.items():
        text.append(SIGNS[sign], palette.signs[sign] if sign is not Sign.ALIKE else "")
        text.append(f" {words}, " if sign is not Sign.EARLIER else f" {words}\n")
    for category in Category:
        text.append("██ ", palette.colours[category])
        text.append(category_text(category).ljust(13))
        if category % 4 == 3:
            text.append("\n")
    return text


class PromptScreen(ModalScreen[str | None]):
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
    CSS = (
        _BOX.format(name="SearchScreen", width=84)
        + "SearchScreen OptionList { height: auto; max-height: 14; border: none; background: $surface; }"
    )
    BINDINGS = [("escape", "dismiss", "close"), ("down", "into_list", "choose")]

    def __init__(self, search: Callable[[str], list[Hit]], words: tuple[str, ...], text: str = "") -> None:
        super().__init__()
        self._search = search
        self._words = words
        self._text = text
        self._hits: list[Hit] = []

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "search: Enter goes to the first match, ↓ selects one; later, > and < step through them"
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

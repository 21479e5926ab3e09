"""Prints a summary of a trace as text or JSON."""

from __future__ import annotations

import sys

from traces.figures.summary import summarize
from tui.outputs import json_text
from tui.terminal import terminal_style
from tui.text.info import info_text
from tui.trace_names import load_trace


def run(name: str, json: bool, details: bool = False) -> int:
    summary = summarize(load_trace(name), details=json or details)
    print(json_text(summary) if json else info_text(summary, name, details=details, **terminal_style(sys.stdout)))
    return 0

"""Writes a budget file, which limits the step time and the memory of a replay.

    init("v100.msgpack", Path("budgets.toml"))      # then: trace diff v100.msgpack replay.msgpack --gate budgets.toml
"""

from __future__ import annotations

import shlex
from pathlib import Path

from traces.comparison.gate import starting_budgets
from traces.figures.summary import summarize
from tui.outputs import require_writable, write_text
from tui.running.narration import say
from tui.trace_names import load_trace


def init(recording: str, output: Path) -> int:
    require_writable(output)
    budgets = starting_budgets(summarize(load_trace(recording)))
    lines = [f"# Budgets for replays of {Path(recording).name}. docs/ci.md lists all budgets.", "[budget]"]
    lines += [f"{key} = {value}" for key, value in budgets.items()]
    write_text(output, "\n".join(lines) + "\n")
    check = f"trace diff {shlex.quote(recording)} REPLAY.msgpack --gate {shlex.quote(str(output))}"
    say(f"wrote {output} ({len(budgets)} budgets); check it with: {check}")
    return 0

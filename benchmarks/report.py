"""Measures the time of `trace report` for a generated recording with a million events and a copy of the recording.

python benchmarks/report.py [--events 1000000] [--json report.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.timeline import made_up
from tui.report.page import report_html
from tui.report.plots import NamedTrace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    sides = [made_up(told.events, seed) for seed in (0, 1)]
    start_s = time.perf_counter()
    one = report_html([NamedTrace("made up", sides[0])])
    one_s = time.perf_counter() - start_s
    both = report_html([NamedTrace("a", sides[0]), NamedTrace("b", sides[1])])
    both_s = time.perf_counter() - start_s - one_s
    figures = {"events": told.events, "one_s": one_s, "both_s": both_s, "one_bytes": len(one), "both_bytes": len(both)}
    print(f"{told.events:,} events, one trace: {one_s:.1f} s, {len(one) / 1e3:.0f} kB")
    print(f"two traces: {both_s:.1f} s, {len(both) / 1e3:.0f} kB")
    if told.json is not None:
        told.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

"""Prints for how much GPU time of each recording a rate (FLOP/s or bytes/s) is known.

It also prints how much GPU time ops take that seem to be faster than the data sheet allows.

    python benchmarks/rates.py ../shared/traces
    mkdir old; git archive 76b9de10 traces | tar x -C old       # the first commit that computes rates
    python benchmarks/rates.py ../shared/traces --before old --markdown docs/peers.md

An op may exceed the data sheet only if all its data fits in the GPU's cache. Such ops are not counted as too fast. With
`--before`, the table also shows the figures that an older version of trace-replay computes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.page_tables import with_tables

BEGIN, END = "<!-- rates -->", "<!-- end of rates -->"
# This program must also run with old code, in which some functions are in other modules.
_SHARES = """
import json, sys
from pathlib import Path
try:
    from traces.figures.measure import work_rows
    from traces.rates.achieved_rates import achieved
except ImportError:
    from traces.measure import work_rows
    from traces.achieved import achieved
from traces.kineto import read_kineto

found = {}
for name in sys.argv[1:]:
    trace = read_kineto(Path(name))
    total_ns = int(trace.device.duration_ns[work_rows(trace)].sum())
    rows = achieved(trace, by_shape=True)
    rated = [row for row in rows if row.gbps or row.tflops]
    rated_ns = sum(max(getattr(row, name, row.device_ns) for name in ("bytes_ns", "flops_ns")) for row in rated)
    above = [row for row in rated if max(row.flops_share or 0, 0 if getattr(row, "cached", "") else row.bytes_share or 0) > 1]
    if total_ns:
        found[Path(name).name.partition(".")[0]] = [rated_ns / total_ns, sum(row.device_ns for row in above) / total_ns]
print(json.dumps(found))
"""


class Shares(NamedTuple):
    """Contains shares of a recording's GPU time."""

    rated: float  # share of ops with a known rate
    too_fast: float  # share of ops that are faster than the data sheet allows


def recordings(folder: Path) -> list[Path]:
    """Return the files of one process, and the folders of several ranks."""
    paths = sorted(folder.iterdir())
    files = [path for path in paths if path.name.endswith((".json", ".json.gz"))]
    return files + [path for path in paths if any(path.glob("rank*.json.gz"))]


def shares(source: Path, folder: Path) -> dict[str, Shares]:
    """Return the shares of each recording that has GPU work, as the code in the folder `source` computes them."""
    command = [sys.executable, "-c", _SHARES, *map(str, recordings(folder))]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, cwd=source, check=True, stdout=subprocess.PIPE)
    return {name: Shares(*of) for name, of in json.loads(done.stdout).items()}


def table(columns: dict[str, dict[str, Shares]]) -> str:
    names = [name for name in next(iter(columns.values())) if any(of[name].rated > 0.001 for of in columns.values())]
    heads = [f"{what}, {version}" for what in ("has a rate", "too fast for the GPU") for version in columns]
    lines = ["| recording | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(heads)]
    kinds = [[of[name][kind] for name in names] for kind in (0, 1) for of in columns.values()]
    rows = {name: [each[place] for each in kinds] for place, name in enumerate(names)}
    rows |= {"**lowest**": [min(each) for each in kinds], "**median**": [median(each) for each in kinds]}
    lines += ["| " + " | ".join([name, *(f"{100 * share:.1f} %" for share in of)]) + " |" for name, of in rows.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="also use the older code in this folder")
    parser.add_argument("--markdown", type=Path, help="replace the table on this page")
    args = parser.parse_args()
    sources = {"before": args.before, "today": Path(__file__).parents[1]}
    found = table({name: shares(of.resolve(), args.folder.resolve()) for name, of in sources.items() if of is not None})
    print(found)
    if args.markdown:
        args.markdown.write_text(with_tables(args.markdown.read_text(encoding="utf-8"), found, BEGIN, END), encoding="utf-8")


if __name__ == "__main__":
    main()

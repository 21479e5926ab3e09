"""Prints for how much GPU time of each recording the FLOP rate or byte rate is known, and which ops seem to be faster than the
data sheet allows.

    python benchmarks/rates.py ../shared/traces

For each recording, the table shows the GPU time of work with a known op, the fractions with a known byte rate and FLOP rate,
and all ops with a rate above the GPU's peak. An op may exceed the peak only if all its data fits in the GPU's cache. Rows with
such ops contain "in cache" and are not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from traces.kineto import read_kineto
from traces.model.trace import Trace, TraceError
from traces.rates.achieved_rates import OpRates, achieved


def recordings(folder: Path) -> list[Path]:
    """The arguments are files of one process, and folders of several ranks."""
    files = [path for path in sorted(folder.iterdir()) if path.name.endswith((".json", ".json.gz"))]
    return files + [path for path in sorted(folder.iterdir()) if path.is_dir() and any(path.glob("*.json.gz"))]


def figures(trace: Trace) -> dict[str, object]:
    """Times are in nanoseconds."""
    rows = achieved(trace, by_shape=True)
    total_ns = sum(row.device_ns for row in rows)
    return {
        "device_ns": total_ns,
        "bytes_known_ns": sum(row.device_ns for row in rows if row.gbps is not None),
        "flops_known_ns": sum(row.device_ns for row in rows if row.tflops is not None),
        "above": [_text(row) for row in rows if _is_above(row)],
    }


def _is_above(row: OpRates) -> bool:
    in_cache = bool(getattr(row, "cached", ""))
    return ((row.bytes_share or 0) > 1 and not in_cache) or (row.flops_share or 0) > 1


def _text(row: OpRates) -> str:
    return f"{row.op} {row.shapes} {row.dtype}: bytes {row.bytes_share or 0:.0%}, FLOPs {row.flops_share or 0:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    found = {}
    for path in recordings(args.folder):
        try:
            found[path.name.partition(".")[0]] = figures(read_kineto(path))
        except TraceError as error:
            print(error, file=sys.stderr)
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    print(f"{'recording':40} {'GPU ms':>9} {'bytes':>7} {'FLOPs':>7}  above the data sheet")
    for name, of in found.items():
        total_ns = int(str(of["device_ns"])) or 1
        shares = [int(str(of[key])) / total_ns for key in ("bytes_known_ns", "flops_known_ns")]
        above = of["above"]
        assert isinstance(above, list)
        print(f"{name:40} {total_ns / 1e6:9.3f} {shares[0]:7.1%} {shares[1]:7.1%}  {len(above)}")
        for text in above:
            print(f"    {text}")
    sums = [sum(int(str(of[key])) for of in found.values()) for key in ("device_ns", "bytes_known_ns", "flops_known_ns")]
    print(f"{'all':40} {sums[0] / 1e6:9.3f} {sums[1] / max(sums[0], 1):7.1%} {sums[2] / max(sums[0], 1):7.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

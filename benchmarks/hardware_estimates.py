"""Compares GPU times that are estimated from the data sheet of an H100 with recordings of an H100.

    python benchmarks/hardware_estimates.py [--page docs/hardware.md]

Each workload of `benchmarks/gpu_workloads.py` runs under `trace replay --gpu h100 --estimate --clock recorded`. The recordings
are in `benchmarks/recordings/h100`. The table shows the median GPU time per step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.hardware import RECORDINGS, command, run_replay  # noqa: E402
from benchmarks.page_tables import with_tables  # noqa: E402
from traces.comparison.compare import compare  # noqa: E402
from traces.format.trace_file import load  # noqa: E402

WORKLOADS = ("lm", "unet", "lstm", "vit", "parallel")
BEGIN, END = "<!-- table of benchmarks/hardware_estimates.py -->", "<!-- end of the estimates -->"


def gpu_times_ns(workload: str, folder: Path) -> tuple[float, float]:
    """Return the estimated and the recorded GPU time per step."""
    recording, estimate = load(RECORDINGS / "h100" / f"{workload}.msgpack"), folder / f"{workload}.msgpack"
    failure = run_replay(["--gpu", "h100", "--estimate", "-o", str(estimate), *command(recording)], folder)
    if not estimate.exists():
        sys.exit(f"{workload}: {failure}")
    busy = compare(recording, load(estimate)).gpu_busy
    if busy.recorded_ns is None or busy.replayed_ns is None:
        sys.exit(f"{workload}: the GPU time is unknown")
    return busy.replayed_ns, busy.recorded_ns


def table(times_ns: dict[str, tuple[float, float]]) -> str:
    lines = ["| workload | estimated GPU time | recorded GPU time | recorded / estimated - 1 |", "|---|---:|---:|---:|"]
    for workload, (estimated_ns, recorded_ns) in times_ns.items():
        cells = f"{estimated_ns / 1e6:.1f} ms | {recorded_ns / 1e6:.1f} ms | {100 * (recorded_ns / estimated_ns - 1):+.0f} %"
        lines.append(f"| {workload} | {cells} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, metavar="PAGE", help="also replace the table of this page")
    told = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = table({workload: gpu_times_ns(workload, Path(folder)) for workload in WORKLOADS})
    print(found)
    if told.page:
        told.page.write_text(with_tables(told.page.read_text(), found, BEGIN, END))
    return 0


if __name__ == "__main__":
    sys.exit(main())

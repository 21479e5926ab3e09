"""Measures how precisely a replay's clock waits for deadlines.

The benchmark waits for 10 000 deadlines at equal distances, like a replay of short steps. The output shows how late the clock
returned, whether delays add up, and how much CPU time the waiting took.

    python benchmarks/clock.py [--steps 10000] [--step-ms 3] [--speed 1] [--json clock.json]
    chrt -f 10 python benchmarks/clock.py            # best possible result, because this process then has priority on its core

Takes half a minute. Other programs that use the same core delay the clock, so compare the results with the load average.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from replayer.timing.clock import Clock, ScaledClock, WallClock, lower_timer_slack  # noqa: E402

ENDS = 1_000  # number of steps at the beginning and at the end whose lateness is compared


def lateness(clock: Clock, steps: int, step_ns: int) -> tuple[list[int], float]:
    """Return the delay of each deadline in ns, and the CPU time used for waiting as a share of one core."""
    began_ns, began_cpu_ns, began_wall_ns = clock.now_ns(), time.thread_time_ns(), time.perf_counter_ns()
    late_ns = []
    for step in range(1, steps + 1):
        deadline_ns = began_ns + step * step_ns
        clock.wait_until(deadline_ns)
        late_ns.append(clock.now_ns() - deadline_ns)
    return late_ns, (time.thread_time_ns() - began_cpu_ns) / (time.perf_counter_ns() - began_wall_ns)


def figures(late_ns: list[int], core_share: float) -> dict[str, Any]:
    """Return the printed values by their names in the JSON file."""
    ordered = sorted(late_ns)
    return {
        "steps": len(ordered),
        "p50_us": ordered[len(ordered) // 2] / 1e3,
        "p99_us": ordered[len(ordered) * 99 // 100] / 1e3,
        "p99_9_us": ordered[len(ordered) * 999 // 1000] / 1e3,
        "max_us": ordered[-1] / 1e3,
        "within_100_us": sum(late <= 100_000 for late in ordered) / len(ordered),
        "drift_us": (median(late_ns[-ENDS:]) - median(late_ns[:ENDS])) / 1e3,
        "core_share": core_share,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--step-ms", type=float, default=3.0, help="time from one deadline to the next, in real time")
    parser.add_argument("--speed", default="1", help="speed as in trace replay --speed; the lateness is in recorded time")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    lowered = lower_timer_slack()
    clock = ScaledClock(WallClock(), args.speed)
    load_before = os.getloadavg()[0]
    late_ns, core_share = lateness(clock, args.steps, int(args.step_ms * 1e6 * float(clock.speed)))
    found = figures(late_ns, core_share)
    found |= {
        "step_ms": args.step_ms,
        "speed": args.speed,
        "timer_slack_lowered": lowered,
        "scheduler": os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None,
        "cores": os.cpu_count(),
        "load_average": [load_before, os.getloadavg()[0]],
        "python": platform.python_version(),
    }
    print(
        f"{args.steps} deadlines, {args.step_ms:g} ms apart, --speed {args.speed}; Python {found['python']},"
        f" {found['cores']} cores, load average {load_before:.2f} before and {found['load_average'][1]:.2f} after"
    )
    rows = {
        "lateness of a wake-up, median": f"{found['p50_us']:9.1f} us",
        "  99th percentile (goal: at most 100 us)": f"{found['p99_us']:9.1f} us",
        "  99.9th percentile": f"{found['p99_9_us']:9.1f} us",
        "  worst": f"{found['max_us']:9.1f} us",
        "  at most 100 us late": f"{100 * found['within_100_us']:9.2f} %",
        f"lateness of the last {ENDS} steps minus the first {ENDS}, median": f"{found['drift_us']:+9.1f} us",
        "CPU time, share of one core (goal: at most 5 %)": f"{100 * found['core_share']:9.2f} %",
    }
    for words, figure in rows.items():
        print(f"  {words:54}{figure}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

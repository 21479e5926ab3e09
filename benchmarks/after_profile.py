"""Measures how much slower calls and steps are after torch.profiler has stopped.

    python benchmarks/after_profile.py --seconds 40 --json after_profile.json       # needs a GPU

Note [Steps after a profile] in tracer/profile.py explains the cause. Each process measures twice without a profile. Then the
process profiles four steps, and measures immediately and 0.3 s later. Finally it profiles four more steps and measures again.
Until the time is over, processes with the environment variable TEARDOWN_CUPTI=1 alternate with processes without it. The table
shows medians over all processes, in microseconds per call or per step. Calls are timed in loops of 200 calls, and steps in
blocks of five steps that end with a synchronization.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler.profiler import _KinetoProfile

T = TypeVar("T")
Step = Callable[[], None]

MODES = {"unset": None, "1": "1"}  # values of TEARDOWN_CUPTI
TIMES = ("before", "before again", "after", "0.3 s later", "after second")
WARM_UP, BLOCKS, STEPS_OF_BLOCK, PROFILED_STEPS = 4, 5, 5, 4
WARM_UP_CALLS, CALLS = 30, 200
LIMIT_S = 60.0  # limit for one process; a process takes about 10 s on an H200


class MeasurementError(Exception):
    """Raised with a reason if a process returned no result."""


def in_child(measure: Callable[[], T]) -> T:
    """Return the result of `measure` in a forked process, which initializes CUDA. The calling process must not have initialized
    CUDA.

    Raises MeasurementError if the process fails or takes longer than LIMIT_S.
    """
    fork = multiprocessing.get_context("fork")  # a forked process need not import torch again
    reader, writer = fork.Pipe(duplex=False)
    process = fork.Process(target=_send, args=(measure, writer))
    process.start()
    writer.close()
    try:
        if not reader.poll(LIMIT_S):
            raise MeasurementError(f"a process took longer than {LIMIT_S:.0f} s")
        error, result = reader.recv()
    except EOFError:
        process.join()
        raise MeasurementError(f"a process ended with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if error:
        raise MeasurementError(error)
    found: T = result
    return found


def _send(measure: Callable[[], object], writer: Connection) -> None:
    try:
        writer.send(("", measure()))
    except Exception as error:
        writer.send((f"{type(error).__name__}: {error}".splitlines()[0], None))


def host_bound_step() -> Step:
    """Runs a training step with 40 small modules. The host limits the time of this step."""
    model = nn.Sequential(*[nn.Linear(64, 64) if i % 2 else nn.ReLU() for i in range(40)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
    inputs, labels = torch.randn(32, 64).cuda(), torch.zeros(32, dtype=torch.long).cuda()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def convolution_step(image_size: int) -> Step:
    """Runs a training step with 16 convolutions and batch normalizations."""
    layers = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(16)]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(16, 32, image_size, image_size).cuda()

    def step() -> None:
        optimizer.zero_grad()
        model(images).sum().backward()
        optimizer.step()

    return step


def copy_step() -> Step:
    """Copies 1 MiB ten times from pageable memory, and ten times within the device."""
    host, first, second = torch.randn(1 << 18), torch.empty(1 << 18).cuda(), torch.empty(1 << 18).cuda()

    def step() -> None:
        for _ in range(10):
            first.copy_(host)
            second.copy_(first)

    return step


def step_us(step: Step) -> float:
    """Return the median time per step in µs, over blocks of steps."""
    times = []
    for _ in range(BLOCKS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS_OF_BLOCK):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / STEPS_OF_BLOCK * 1e6)
    return median(times)


def call_us(call: Callable[[], object]) -> float:
    """Return the host time of one call in µs. The loop of calls does not wait for the device."""
    for _ in range(WARM_UP_CALLS):
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / CALLS * 1e6


def take_profile(step: Step) -> int:
    """Profile some steps as the recorder does. Returns the number of kernels."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    profile = _KinetoProfile(activities=activities, record_shapes=True, profile_memory=True, acc_events=True)
    profile.prepare_trace()
    step()
    torch.cuda.synchronize()
    profile.start_trace()
    for _ in range(PROFILED_STEPS):
        step()
    torch.cuda.synchronize()
    profile.stop_trace()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sum(event.get("cat") == "kernel" for event in events)


def measure(teardown: str | None, image_size: int) -> dict[str, Any]:
    """Return the times in µs of one process, by name and time of measurement, and the number of kernels in both profiles."""
    os.environ.pop("TEARDOWN_CUPTI", None)
    if teardown is not None:
        os.environ["TEARDOWN_CUPTI"] = teardown
    host_bound = host_bound_step()
    steps = {"host-bound step": host_bound, "convolution step": convolution_step(image_size), "copy step": copy_step()}
    small, stream = torch.zeros(16).cuda(), torch.cuda.current_stream()
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    calls: dict[str, Callable[[], object]] = {
        "add_": lambda: small.add_(1),
        "Event.record": lambda: event.record(stream),
        "Event.query": event.query,
    }
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    found: dict[str, dict[str, float]] = {name: {} for name in (*steps, *calls)}
    kernels = []
    for when in TIMES:
        if when in ("after", "after second"):
            kernels.append(take_profile(host_bound))
        elif when == "0.3 s later":
            time.sleep(0.3)
        for name, step in steps.items():
            found[name][when] = step_us(step)
        for name, call in calls.items():
            found[name][when] = call_us(call)
    if not all(kernels):
        raise MeasurementError(f"the profiles have {kernels[0]} and {kernels[1]} kernels, so CUPTI was not attached")
    return {"gpu": torch.cuda.get_device_name(), "kernels": kernels, "us": found}


def alternate(seconds: float, image_size: int) -> dict[str, list[dict[str, Any]]]:
    """Return the results of all processes by mode, with at least one process for each mode."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in MODES}
    until, longest = time.monotonic() + seconds, 0.0
    while not all(found.values()) or time.monotonic() + longest < until:
        name = min(MODES, key=lambda mode: len(found[mode]))
        began = time.monotonic()
        found[name].append(in_child(partial(measure, MODES[name], image_size)))
        longest = max(longest, time.monotonic() - began)
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the table as lines of text."""
    lines = [f"{'TEARDOWN_CUPTI':15} {'µs':17}" + "".join(f"{when:>14}" for when in TIMES)]
    for mode, results in found.items():
        for name in results[0]["us"]:
            figures = (median(result["us"][name][when] for result in results) for when in TIMES)
            lines.append(f"{mode:15} {name:17}" + "".join(f"{figure:14.1f}" for figure in figures))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="approximate duration of the measurement")
    parser.add_argument("--image-size", type=int, default=64, help="image size of the convolutions")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    try:
        found = alternate(args.seconds, args.image_size)
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 1
    processes = " and ".join(f"{len(results)} with TEARDOWN_CUPTI {mode}" for mode, results in found.items())
    print(f"{found['unset'][0]['gpu']}, torch {torch.__version__}, processes: {processes}")
    lines = table(found)
    print("\n".join(lines))
    if args.json:
        args.json.write_text(json.dumps({"torch": torch.__version__, "processes": found, "lines": lines}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures the time to pin a batch of images on this machine, and the time of copies to the virtual device.

    python benchmarks/pinned.py

The first table shows times of `Tensor.pin_memory` for float32 images: the first call allocates and locks memory, and later
calls take the memory from a cache. Locked memory is read from the system. The reference values come from an emulator study
(Summer of Reproducibility 2023), and depend on the study's machine. The second table compares host-to-device copies in a replay
with the study's values, for a recording without copies and for the recording `--trace`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from replayer import backend, state
from replayer.cost_model.constants import PAGEABLE_GBPS, PINNED_GBPS
from replayer.cost_model.copy_costs import CopyCosts
from replayer.cost_model.device_speed import data_sheet_speed
from replayer.state import host_memory
from replayer.surfaces import install_all
from traces.format.trace_file import load
from traces.library import find
from traces.model.trace import Trace

BATCHES = {64: 13, 128: 23, 256: 43}  # number of images, and the study's time of the thread's copy in ms
IMAGE = (3, 224, 224)
REPEATS = 7


def locked_bytes() -> int | None:
    """Return the locked memory of this process (VmLck), or None if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return int(next(line for line in lines if line.startswith("VmLck")).split()[1]) << 10


def pinning(images: int) -> dict[str, Any]:
    """Return the milliseconds for pinning a batch (first call and later calls), and for copying the batch in unpinned
    memory."""
    batch = torch.ones(images, *IMAGE)
    host_memory().empty_cache()
    before = locked_bytes()

    def pin_ms() -> float:
        began = time.perf_counter()
        batch.pin_memory()
        return (time.perf_counter() - began) * 1e3

    first_ms = pin_ms()
    after = locked_bytes()
    cached_ms = median(pin_ms() for _ in range(REPEATS))
    began = time.perf_counter()
    for _ in range(REPEATS):
        batch.clone()
    clone_ms = (time.perf_counter() - began) / REPEATS * 1e3
    return {
        "images": images,
        "bytes": batch.nbytes,
        "first_ms": first_ms,
        "cached_ms": cached_ms,
        "clone_ms": clone_ms,
        "locked_bytes": None if before is None or after is None else after - before,
    }


def copying(transfers: CopyCosts, images: int) -> dict[str, Any]:
    """Return the milliseconds for copying a batch to the device from pinned and pageable memory, and the source of these
    times."""
    size_bytes = images * 3 * 224 * 224 * 4
    facts: dict[str, Any] = {"images": images}
    for name, pinned in (("pinned", True), ("pageable", False)):
        copy = transfers.copy("h2d", pinned, size_bytes)
        facts[name] = {"ms": copy.duration_ns / 1e6, "origin": copy.origin.name.lower()}
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", default=[], help="also measure with the copies of this recording")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    backend.register()
    install_all(torch)
    state.start(_no_gpu)
    torch.set_num_threads(1)  # as PyTorch's pin-memory thread does

    print("pin_memory of float32 images 3x224x224, ms")
    print(f"  {'images':>6} {'MB':>7} {'first':>8} {'cached':>8} {'clone':>8} {'study':>8}   locked")
    results: dict[str, Any] = {"pinning": [], "copying": {}}
    for images, study_ms in BATCHES.items():
        row = pinning(images)
        results["pinning"].append(row)
        locked = "unknown" if row["locked_bytes"] is None else f"{row['locked_bytes'] >> 20} MiB in VmLck"
        times = f"{row['first_ms']:8.1f} {row['cached_ms']:8.1f} {row['clone_ms']:8.1f} {study_ms:8}"
        print(f"  {images:6} {row['bytes'] / 1e6:7.1f} {times}   {locked}")

    traces = {"no recorded copies": Trace()} | {name: load(find(name)) for name in args.trace}
    for name, trace in traces.items():
        device = trace.devices[0].name if trace.devices else ""
        transfers = CopyCosts.of(trace, data_sheet_speed(device))
        published = f"published: {PINNED_GBPS} and {PAGEABLE_GBPS} GB/s"
        print(f"\ncopies to the virtual device, ms: {name} ({published})")
        print(f"  {'images':>6} {'pinned':>8} {'published':>10} {'pageable':>9} {'published':>10}   origin")
        rows = results["copying"][name] = [copying(transfers, images) for images in BATCHES]
        for row in rows:
            size_bytes = row["images"] * 3 * 224 * 224 * 4
            pinned, pageable = row["pinned"], row["pageable"]
            lines = (size_bytes / gbps / 1e6 for gbps in (PINNED_GBPS, PAGEABLE_GBPS))
            of_pinned, of_pageable = lines
            print(
                f"  {row['images']:6} {pinned['ms']:8.2f} {of_pinned:10.2f} {pageable['ms']:9.2f} {of_pageable:10.2f}"
                f"   {pinned['origin']}, {pageable['origin']}"
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


def _no_gpu() -> Any:
    raise RuntimeError("this benchmark uses no virtual GPU, only its host memory")


if __name__ == "__main__":
    main()

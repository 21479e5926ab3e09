"""Measures the time to copy image batches into page-locked memory, as in a DataLoader with pin_memory=True.

    python pin_batches.py --batches 64,128,256,512,1024
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch


def pin_ms(batch: int, size: int, times: int) -> float:
    """Return the median time (ms) in which one CPU core copies a batch to pinned memory. The first batch, which also allocates
    the memory, is not measured."""
    images = torch.zeros(batch, 3, size, size)
    found = []
    for _ in range(times + 1):
        begin_ns = time.thread_time_ns()
        images.pin_memory()
        found.append((time.thread_time_ns() - begin_ns) / 1e6)
    return statistics.median(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="64,128,256,512,1024")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--times", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)  # PyTorch's pinning thread uses one thread too
    for batch in map(int, args.batches.split(",")):
        print(f"batch {batch}: {pin_ms(batch, args.image_size, args.times):.2f} ms", flush=True)


if __name__ == "__main__":
    main()

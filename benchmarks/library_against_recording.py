"""Compares a cell of the library with a recording of the same network at the same batch size, and explains differences.

    python benchmarks/library_against_recording.py v100/resnet50 V100_RESNET50.pt.trace.json.gz --batch 32

The recording may be a trace file or a profiler's file. Compared are the recording's GPU busy time per phase and the cell's
times between synchronized points. GPUs with one chip differ in clock, memory and cooling, so their data sheets are printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from traces.figures.measure import profiled_steps, steady_steps
from traces.figures.phase_medians import phase_medians
from traces.format.trace_file import load
from traces.kineto import read_kineto
from traces.library.catalogue import find_cell
from traces.model.trace import Trace
from traces.names.cards import card_of

REST = ("loss", "zero_grad", "backward", "optimizer")


def read(path: Path) -> Trace:
    return load(path) if path.suffix == ".msgpack" else read_kineto(path)


def line(name: str, ours_ns: int, theirs_ns: int) -> str:
    return f"{name:10} {ours_ns / 1e6:9.2f} ms {theirs_ns / 1e6:11.2f} ms   {100 * (theirs_ns / ours_ns - 1):+.1f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cell")
    parser.add_argument("recording", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    given = parser.parse_args()
    cell, recorded = find_cell(given.cell), read(given.recording)
    medians = phase_medians(recorded, steady_steps(recorded), profiled_steps(recorded))
    busy = {name: of.busy_median_ns or 0 for name, of in medians.items()}
    measured = cell.for_batch(given.batch).phases_ns
    ours = {"forward": busy.get("forward", 0), "rest": sum(busy.get(name, 0) for name in REST)}
    theirs = {"forward": measured["forward"], "rest": int(cell.rest_ns[list(cell.batches).index(given.batch)])}
    device = recorded.devices[0].name
    print(f"{'':10} {'recording':>12} {cell.name:>14}   difference")
    for name in ours:
        print(line(name, ours[name], theirs[name]))
    print(line("step", sum(ours.values()), sum(theirs.values())))
    print(f"\nThe recording is of {device}, the cell of {cell.gpu.device}; by their data sheets:")
    for label, card in ((device, card_of(device)), (cell.gpu.device, card_of(cell.gpu.device))):
        print(f"  {label:24} {card.tflops['fp32']:5.1f} TFLOPS in fp32, {card.memory_gbps:5.0f} GB/s")
    print("Other causes: different software (cuDNN, PyTorch), and waits for the host, which a cell's phases include.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

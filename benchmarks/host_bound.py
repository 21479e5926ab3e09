"""Measures step time errors for programs whose steps of 1 to 6 ms are limited by the host.

    python benchmarks/host_bound.py [--recordings 7] [--replay-with PYTHON] [--json FILE]       # on a GPU, simulated or real

Each program is recorded with kernels and replayed with `--clock recorded`, seven times. The median step time of the replay is
compared with that of the recorded steps without the profiler, and the result is the median over the seven recordings. The error
may be 3 % or half of the recording's noise, whichever is larger. The noise is half the interquartile range of the recorded step
times, divided by their median. The noise comes from other programs on the machine and from Python's garbage collector.

The option `--replay-with` names the Python interpreter of another environment, for example one with a CPU build of torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from traces.format.trace_file import load  # noqa: E402
from traces.model.trace import StepKind  # noqa: E402

BOUND = 0.03
STEPS = 60
COMMON = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(model, optimizer, batches, read=False):
    for inputs, labels in batches:
        if not inputs.is_cuda:
            inputs, labels = inputs.cuda(), labels.cuda()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if read:
            loss.item()

def layers(count, *more):
    made = [layer for _ in range(count) for layer in (nn.Linear(64, 64), *(kind() for kind in more))]
    return nn.Sequential(*made, nn.Linear(64, 10)).cuda()

def data(batch):
    return TensorDataset(torch.randn(batch * STEPS, 64), torch.randint(0, 10, (batch * STEPS,)))
"""
PROGRAMS = {
    "SGD, 59 modules": """
model = layers(29, nn.ReLU)
batch = torch.randn(32, 64).cuda(), torch.randint(0, 10, (32,)).cuda()
train(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), [batch] * STEPS)
""",
    "Adam, loss read": """
model = layers(12, lambda: nn.LayerNorm(64), nn.ReLU)
batch = torch.randn(32, 64), torch.randint(0, 10, (32,))
train(model, torch.optim.Adam(model.parameters()), [batch] * STEPS, read=True)
""",
    "DataLoader, no workers": """
model = layers(20, nn.ReLU)
train(model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(data(64), batch_size=64))
""",
    "attention, AdamW": """
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
embedding = nn.Unflatten(1, (4, 16)), nn.Linear(16, 64)
model = nn.Sequential(*embedding, nn.TransformerEncoder(layer, 3), nn.Flatten(), nn.Linear(256, 10))
train(model.cuda(), torch.optim.AdamW(model.parameters()), [(torch.randn(8, 64).cuda(), torch.zeros(8).long().cuda())] * STEPS)
""",
    "products, SGD": """
a, b = torch.randn(64, 64).cuda(), torch.randn(64, 64).cuda()
weight = nn.Parameter(torch.randn(64, 64).cuda())
optimizer = torch.optim.SGD([weight], lr=0.01)
for _ in range(STEPS):
    for _ in range(20):
        a @ b
    optimizer.zero_grad()
    (a @ weight).sum().backward()
    optimizer.step()
""",
    "CNN, 2 loader workers": """
def block(n, m):
    return nn.Sequential(nn.Conv2d(n, m, 3, padding=1, bias=False), nn.BatchNorm2d(m), nn.ReLU())

if __name__ == "__main__":
    blocks = [block(3, 16), *[block(16, 16) for _ in range(8)]]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    images = TensorDataset(torch.randn(8 * STEPS, 3, 16, 16), torch.randint(0, 10, (8 * STEPS,)))
    loader = DataLoader(images, batch_size=8, num_workers=2, pin_memory=True)
    train(model.cuda(), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), loader)
""",
    "DataParallel": """
model = nn.DataParallel(layers(8, nn.ReLU))
batch = torch.randn(32, 64).cuda(), torch.randint(0, 10, (32,)).cuda()
train(model, torch.optim.SGD(model.parameters(), lr=0.01), [batch] * STEPS)
""",
}


def trace_command(python: str, *words: str) -> None:
    """Run `trace` with another Python. Raises RuntimeError with the last lines of the output if the command fails."""
    command = [python, "-m", "tui.cli", *words]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"trace {words[0]} failed: {done.stderr[-500:]}")


def median_step(path: Path) -> tuple[float, float]:
    """Return the median step time without the profiler in ns, and the noise as a fraction of the median."""
    steps = load(path).steps
    times = steps.duration_ns[steps.kind == StepKind.STEADY]
    low, middle, high = np.percentile(times, (25, 50, 75)).tolist()
    return middle, (high - low) / 2 / middle


def error_of(script: Path, folder: Path, replay_with: str) -> tuple[float, float, float]:
    """Return the relative error of the replayed step time, the noise, and the step time in ns for one recording."""
    recording, replay = folder / "run.msgpack", folder / "replay.msgpack"
    shape = "--warmup 5 --clean-steps 25 --profiled-steps 7".split()
    trace_command(sys.executable, "record", "-o", str(recording), *shape, str(script))
    trace_command(replay_with, "replay", "--trace", str(recording), "--clock", "recorded", "-o", str(replay), str(script))
    step_ns, noise = median_step(recording)
    return median_step(replay)[0] / step_ns - 1, noise, step_ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=int, default=7, help="number of recordings of each program")
    parser.add_argument("--only", metavar="PROGRAM", help="part of the names of the programs to run")
    parser.add_argument("--replay-with", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    facts = {}
    print(f"{'':24} {'step':>9} {'error':>8} {'from':>8} {'to':>8} {'noise':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in PROGRAMS.items():
            if args.only and args.only not in name:
                continue
            script = Path(folder) / "train.py"
            script.write_text(f"STEPS = {STEPS}\n{COMMON}{text}")
            found = [error_of(script, Path(folder), args.replay_with) for _ in range(args.recordings)]
            errors, noises, steps = zip(*found, strict=True)
            error, noise = median(errors), median(noises)
            met = "met" if abs(error) <= max(BOUND, noise / 2) else "NOT MET"
            facts[name] = {"step_ns": median(steps), "errors": errors, "noise": noise, "verdict": met}
            shares = " ".join(f"{100 * share:+6.1f} %" for share in (error, min(errors), max(errors)))
            print(f"{name:24} {median(steps) / 1e6:6.2f} ms {shares} {100 * noise:5.1f} % {met}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()

"""Tests the recorder in a separate process on the CPU, with one recording of phases and one recording of kernels.

One process imports torch, and each recording is made in a fork of this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tracer import child
from traces.format.trace_file import load
from traces.model.trace import NONE, BatchKind, Ending, StepKind, Trace

FORKS = """
import json, os, signal, sys
import torch._dynamo  # the first step of an optimizer imports it
import tracer.child

for line in sys.stdin:
    script, *words = json.loads(line)
    process = os.fork()
    if not process:
        signal.alarm(100)
        sys.argv[1:] = words
        exec(script, {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""
TRAIN = """
import json, sys
from pathlib import Path
import torch
from tracer import child

child.start(json.loads(sys.argv[1]))
if sys.argv[2:]:
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randint(0, 4, (24,)))
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    if sys.argv[2:]:
        torch.distributed.all_reduce(model.weight.grad)
        torch.distributed.barrier()
    optimizer.step()
    loss.item()
"""
# the script's tensors note every call of PyTorch; calls of the recorder would be noted, too
NOTED = """
import json, sys
import torch
from tracer import child

child.start(json.loads(sys.argv[1]))
calls = []

class Noted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        calls.append(function)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs or {})

tensor = torch.ones(2, 2).as_subclass(Noted)
tensor.to("cpu")
tensor.tolist()
tensor.nonzero()
tensor.copy_(other=torch.zeros(2, 2))
torch.equal(input=tensor, other=tensor)
tensor[0]
next(iter(torch.utils.data.DataLoader([0], collate_fn=lambda batch: tensor)))
methods = [getattr(torch.Tensor, name) for name in ("to", "tolist", "nonzero", "copy_", "__getitem__")]
assert calls == [*methods[:4], torch.equal, methods[4]], calls

class Text(torch.Tensor):  # its methods return objects that the recorder cannot record
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return function.__name__

text = torch.ones(2).as_subclass(Text)
assert (text.item(), text.tolist(), text.nonzero(), torch.unique(text)) == ("item", "tolist", "nonzero", "unique")
"""


Run = Callable[..., int]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Return a function that runs a script with arguments in a fork, and returns the exit code of the script."""
    with subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        requests, codes = process.stdin, process.stdout
        assert requests is not None and codes is not None

        def run(*script: str) -> int:
            print(json.dumps(script), file=requests, flush=True)
            return int(codes.readline())

        yield run
        requests.close()


def recorded(run: Run, folder: Path, *words: str, **config: Any) -> tuple[Trace, list[Path]]:
    session = {"out": str(folder / "run.msgpack"), "config": {"warmup": 1, "clean": 2, "profiled": 2, **config}}
    assert run(TRAIN, json.dumps(session), *words) == 0
    (part,) = folder.glob("run.msgpack.*.part")
    return load(part), list(folder.glob("run.msgpack.*.profile.json"))


@pytest.fixture(scope="module")
def by_phase(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, list[Path]]:
    return recorded(run, tmp_path_factory.mktemp("phase"), "ranks", grain="phase")


@pytest.fixture(scope="module")
def by_kernel(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, list[Path]]:
    return recorded(run, tmp_path_factory.mktemp("kernel"), grain="kernel")


def test_the_recorder_does_not_call_methods_of_tensor_classes(run: Run, tmp_path: Path) -> None:
    session = {"out": str(tmp_path / "run.msgpack"), "config": {"grain": "phase"}}
    assert run(NOTED, json.dumps(session)) == 0


def test_every_step_is_recorded_with_its_batch_and_loss_and_phases(by_phase: tuple[Trace, list[Path]]) -> None:
    """GIVEN a script with six batches of four rows THEN each step waits for a batch of 8 floats and 1 label per row."""
    trace, _ = by_phase
    assert trace.steps.number.tolist() == [0, 1, 2, 3, 4, 5]
    assert trace.batches.kind.tolist() == [BatchKind.WAIT] * 6
    assert trace.batches.bytes.tolist() == [4 * (8 * 4 + 8)] * 6
    names = [trace.strings[int(name)] for name in trace.phases.name[trace.phases.step == 2]]
    assert [name for name in names if name != "other"] == ["loader", "forward", "loss", "zero_grad", "backward", "optimizer"]
    assert len(trace.values) == 6  # each step reads the loss once


def test_collectives_of_every_step_are_recorded_with_their_size(by_phase: tuple[Trace, list[Path]]) -> None:
    trace, _ = by_phase
    calls = trace.collectives
    names = [trace.strings[int(name)] for name in calls.name]
    assert names == ["all_reduce", "barrier"] * 6
    assert calls.bytes.tolist() == [8 * 4 * 4, NONE] * 6
    assert set(calls.ending.tolist()) == {Ending.SEEN}


def test_a_recording_of_phase_times_profiles_no_step_and_lists_missing_data(by_phase: tuple[Trace, list[Path]]) -> None:
    trace, profiles = by_phase
    assert profiles == []
    assert StepKind.PROFILED not in trace.steps.kind
    assert "kernels" in trace.lacks
    assert "device time: the script used no GPU here" in trace.lacks
    assert not any("buckets" in lack for lack in trace.lacks)
    # Without a profile, the collectives are read from the flight recorder.
    assert trace.provenance["flight_recorder"]["looks"] > 0


def test_a_recording_of_kernels_profiles_steps_after_unprofiled_steps(by_kernel: tuple[Trace, list[Path]]) -> None:
    trace, profiles = by_kernel
    kinds = trace.steps.kind.tolist()
    assert kinds[:3] == [StepKind.WARMUP, StepKind.STEADY, StepKind.STEADY]
    assert kinds.count(StepKind.PROFILED) == 2
    assert len(profiles) == 1 and "kernels" not in trace.lacks


@pytest.mark.parametrize("end", ["os._exit(3)", "os.execl('/bin/sh', 'sh', '-c', 'exit 3')"])
def test_a_script_that_ends_without_atexit_is_recorded_completely(run: Run, tmp_path: Path, end: str) -> None:
    session = json.dumps({"out": str(tmp_path / "run.msgpack"), "config": {"grain": "phase"}})
    assert run(f"{TRAIN}\nimport os; {end}", session) == 3
    (part,) = tmp_path.glob("run.msgpack.*.part")
    assert len(load(part).steps) == 6


def test_the_recorder_never_overwrites_the_file_of_an_earlier_process_with_the_same_id(tmp_path: Path) -> None:
    paths = []
    for _ in range(3):
        paths.append(child._unused_path(tmp_path / "run.msgpack"))
        paths[-1].touch()
    assert [path.name.replace(str(os.getpid()), "N") for path in paths] == [
        f"run.msgpack.N{number}.part" for number in ("", ".2", ".3")
    ]

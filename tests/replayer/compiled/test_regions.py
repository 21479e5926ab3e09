"""Compiled regions of a script get the kernels of the recorded regions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import traces
from tests.replayer.compiled.handmade_recording import SCRIPT, recording
from traces.compiled.regions import region_calls
from traces.model.trace import Origin, Trace

FORWARD, BACKWARD = ["sgemm", "triton_poi_fused_relu_0"], ["triton_poi_fused_1", "sgemm_t"]
TIMES_US = {"sgemm": 11, "triton_poi_fused_relu_0": 7, "triton_poi_fused_1": 9, "sgemm_t": 13}


def replay(recorded: Trace, folder: Path, *, mode: str = "default", batch: int = 16) -> Trace:
    script, file, made = folder / "train.py", folder / "recorded.msgpack", folder / "replayed.msgpack"
    script.write_text(SCRIPT.format(mode=mode, batch=batch))
    traces.save(recorded, file)
    options = ["--trace", str(file), "-o", str(made), "--clock", "recorded", str(script)]
    command = [str(Path(sys.executable).parent / "trace"), "replay", *options]
    subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    return traces.load(made)


def kernels_of(trace: Trace) -> list[tuple[str, bool, list[str]]]:
    names = trace.strings
    return [
        (call.region, call.is_backward, [names[trace.device.name[row]] for row in call.work]) for call in region_calls(trace)
    ]


@pytest.mark.parametrize("graphs", [False, True])
def test_a_call_of_a_region_takes_the_kernels_of_the_recorded_call(tmp_path: Path, graphs: bool) -> None:
    """GIVEN a recorded loop with one region WHEN the loop is replayed THEN each call has the recorded fused kernels, with
    their times, and the recording's backward belongs to the region's backward."""
    recorded = recording(graphs=graphs)
    assert kernels_of(recorded) == [("0/0", False, FORWARD), ("0/0", True, BACKWARD)] * 3
    made = replay(recorded, tmp_path, mode="reduce-overhead" if graphs else "default")
    assert kernels_of(made) == [("0/0", False, FORWARD), ("0/0", True, BACKWARD)] * 4
    for call in region_calls(made):
        for row in call.work:
            assert made.device.duration_ns[row] == 1000 * TIMES_US[made.strings[made.device.name[row]]]
            assert made.device.origin[row] == Origin.EXACT
    launching = [made.strings[made.host.name[row]] for row in region_calls(made)[0].launching]
    assert launching == (["cudaGraphLaunch"] if graphs else ["aten::addmm", "triton_poi_fused_relu_0"])
    assert traces.compare(recorded, made).verdict.same
    # AND a forward allocates what the recorded forward allocated: one block, or nothing outside of a CUDA graph's pool
    forward = region_calls(made)[0]
    start_ns, end_ns = made.host.start_ns[forward.row], made.host.end_ns[forward.row]
    within = (made.memory.time_ns >= start_ns) & (made.memory.time_ns <= end_ns)
    assert made.memory.bytes[within].tolist() == ([] if graphs else [512])


def test_compiled_attention_has_the_kernel_that_cuda_chooses(tmp_path: Path) -> None:
    """GIVEN attention in half precision on an A100 WHEN a script compiles it THEN it is one flash attention, as in eager
    code."""
    script, made = tmp_path / "attention.py", tmp_path / "made.msgpack"
    script.write_text("""
import torch
from torch.nn.functional import scaled_dot_product_attention

attention = torch.compile(lambda q: scaled_dot_product_attention(q, q, q, is_causal=True))
attention(torch.ones(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)).sum().backward()
with torch.no_grad():
    attention(torch.ones(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16))
""")
    options = ["--gpu", "a100", "--estimate", "-o", str(made)]
    command = [str(Path(sys.executable).parent / "trace"), "replay", *options, str(script)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300, stdin=subprocess.DEVNULL)
    trace = traces.load(made)
    names = [trace.strings[name] for name in trace.host.name]
    assert names.count("aten::_scaled_dot_product_flash_attention") == 2
    assert names.count("aten::_scaled_dot_product_flash_attention_backward") == 1
    assert "aten::bmm" not in names


def test_a_region_with_other_inputs_does_not_take_recorded_kernels(tmp_path: Path) -> None:
    """GIVEN a recorded loop with batches of 16 WHEN the script's batch is 32 THEN its region runs op by op."""
    made = replay(recording(), tmp_path, batch=32)
    for _, is_backward, names in kernels_of(made):
        assert not set(names) & {"triton_poi_fused_relu_0", "triton_poi_fused_1"}, is_backward
    assert len(kernels_of(made)) == 8

"""Tests that Dynamo's counters have the same values in a replay as natively on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tui.commands.replay_library import source_of

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = str(Path(__file__).with_name("programs.py"))
PROGRAMS = (
    "gpt", "item_breaks_the_graph", "full_graph_error", "sizes_become_dynamic", "recompiles_until_the_limit", "stances",
    "optimizer_step", "scheduled_optimizer_step", "checkpointed_with_dropout", "encoder_inference", "hooks_and_buffers",
    "logged", "default_device", "disabled_without_its_callees", "whole_step_with_clipping", "methods_of_optimizers",
    "generator_breaks_the_graph", "gradient_penalty",
)  # fmt: skip


RANKS = "ddp_splits_the_graph", "fsdp2_of_compiled_blocks", "all_reduce_in_place"
TRACE = str(Path(sys.executable).parent / "trace")
REPLAY = TRACE, "replay", "--gpu", "v100", "--estimate"


def _facts(*command: str) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=200)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {program["program"]: program for program in found}


@pytest.mark.warm
def test_two_functions_are_compiled_equally_often_on_virtual_gpu_and_cpu() -> None:
    """A function reads a value, and another one is called with four sizes. Both have equal counts on the CPU and on the virtual
    GPU. The read splits the first function into two graphs. The second size makes the other function's graph dynamic."""
    from tests.replayer.compiled import programs  # this import also imports Dynamo and the replayer, so it is made late
    from tests.replayer.compiled.replaying import replaying

    with replaying(source_of("", "v100", estimate=True)):
        for name, breaks in [("item_breaks_the_graph", 1), ("sizes_become_dynamic", 0)]:
            native = programs.run(name, programs.Compiler("cpu", "aot_eager"))
            assert programs.run(name, programs.Compiler("cuda", "inductor")) == native
            counters = native["counters"]
            assert counters["frames"] == {"total": 2, "ok": 2}
            assert counters["stats"]["unique_graphs"] == 2
            assert sum(counters.get("graph_break", {}).values()) == breaks


@pytest.mark.warm
def test_parameters_as_arguments_of_a_compiled_function_have_static_shapes() -> None:
    """GIVEN a function that is called with parameters of three sizes THEN there is one graph per size, as on the CPU."""
    from tests.replayer.compiled import programs
    from tests.replayer.compiled.replaying import replaying

    with replaying(source_of("", "v100", estimate=True)):
        native = programs.run("parameters_as_arguments", programs.Compiler("cpu", "aot_eager"))
        assert native["counters"]["stats"]["unique_graphs"] == 3
        assert programs.run("parameters_as_arguments", programs.Compiler("cuda", "inductor")) == native


@pytest.mark.warm
def test_compiled_code_flattens_a_channels_last_result_of_a_convolution() -> None:
    """cuDNN returns channels_last if the weight is channels_last (`cudnn_conv_suggest_memory_format`). Dynamo has to know this
    layout, because a view cannot flatten such an image."""
    import torch

    from tests.replayer.compiled.replaying import replaying

    with replaying(source_of("", "v100", estimate=True)):
        model: Any = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten())
        model.to("cuda", memory_format=torch.channels_last)
        compiled: Any = torch.compile(model)
        assert compiled(torch.ones(2, 3, 6, 6, device="cuda")).shape == (2, 8 * 4 * 4)


@pytest.mark.warm
def test_a_compiled_training_step_has_the_graph_breaks_that_pytorch_expects_on_a_gpu() -> None:
    """PyTorch's CI expects 8 graph breaks for a training step, although the network itself causes none. Without an optimizer,
    it expects 6."""
    import torch

    from benchmarks.programs.expected_breaks import TrainingStep, breaks_of
    from tests.replayer.compiled.replaying import replaying

    with replaying(source_of("", "v100", estimate=True)):
        for has_optimizer, expected in [(True, 8), (False, 6)]:
            step = TrainingStep(torch.nn.Linear(4, 4).to("cuda"), has_optimizer)
            assert breaks_of(step, torch.ones(2, 4, device="cuda"), "inductor") == expected


@pytest.mark.warm
def test_the_reason_of_a_recompilation_does_not_name_files_of_the_replayer() -> None:
    """On a GPU, attention pads a mask to a multiple of 8 columns. The replayer's Python code does this instead of PyTorch's C++
    code. The guard of the recompilation belongs to this code, so PyTorch would name the replayer's file."""
    import torch

    from tests.replayer.compiled.programs import logging_compilations
    from tests.replayer.compiled.replaying import replaying

    def attention(x: Any, mask: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    with replaying(source_of("", "v100", estimate=True)), logging_compilations() as said:
        compiled = torch.compile(attention, dynamic=True)
        for size in (9, 16):
            compiled(torch.ones(2, 2, size, 8, device="cuda"), torch.ones(size, size, device="cuda"))
    assert "% 8) != 0" in said.getvalue()
    assert "cuda_decompositions.py" not in said.getvalue()


@pytest.mark.program
@pytest.mark.xdist_group("compiled")
def test_compile_counts_of_a_replay_equal_those_of_a_cpu_run() -> None:
    """Frames, graphs, graph breaks, recompilations, errors and logs are compared. The native run uses aot_eager."""
    native = _facts(sys.executable, SCRIPT, "cpu", "aot_eager", *PROGRAMS)
    replayed = _facts(*REPLAY, SCRIPT, "cuda", "inductor", *PROGRAMS)
    assert list(native) == list(PROGRAMS) and not [name for name in native if "error" in native[name]]
    assert replayed == native
    assert native["item_breaks_the_graph"]["counters"]["stats"]["unique_graphs"] == 2
    assert native["recompiles_until_the_limit"]["counters"]["stats"]["unique_graphs"] == 8


@pytest.mark.program
@pytest.mark.xdist_group("compiled")
def test_compile_counts_with_ddp_and_fsdp_equal_those_with_gloo() -> None:
    """GIVEN two ranks THEN models with DDP, models with FSDP2 and a model that calls a collective have the same counts."""
    script = SCRIPT.replace("programs", "ranks")
    launcher = "-m", "torch.distributed.run", "--nproc-per-node", "2"
    native = _facts(sys.executable, *launcher, script, "cpu", "aot_eager", *RANKS)
    assert _facts(*REPLAY, "--nproc", "2", script, "cuda", "inductor", *RANKS) == native
    assert list(native) == list(RANKS) and not [name for name in native if "error" in native[name]]
    assert native["ddp_splits_the_graph"]["facts"] == [4]  # the first bucket has one layer, and the others have at most two

"""Tests how steps are found without step marks, for example by repeated launches or by marks on the GPU.

Times are in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from traces import Trace, read_kineto
from traces.figures.pace import pace
from traces.figures.summary import summarize
from traces.kineto import read_kineto_bytes
from traces.kineto.structure.batch_ends import BatchEnds
from traces.kineto.structure.step_events import StepEvent
from traces.model.trace import HostSpans, StepKind, Strings
from traces.script.phase_rule import PLAIN

US = 1000


class Profile:
    """Builds a profile call by call. Each call of `launch` takes 10 us on the host."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now_us = 1_000
        self.done_us = 1_100
        self._correlation = 0

    def launch(self, op: str, kernels: list[str], lasts_us: int = 100, call: str = "cudaLaunchKernel",
               reads: list[int] | None = None, looks_up: list[int] | None = None) -> None:  # fmt: skip
        self._correlation += 1
        shapes = [shape for shape in (reads, looks_up) if shape]
        self._event("cpu_op", op, self.now_us, 10, {"Input Dims": shapes} if shapes else None)
        args = {"correlation": self._correlation}
        if kernels:
            self._event("cuda_runtime", call, self.now_us + 2, 5, args)
        for kernel in kernels:
            category = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
            self.done_us = max(self.done_us, self.now_us + 10)
            self._event(category, kernel, self.done_us, lasts_us, {"device": 0, "stream": 7, **args}, on_gpu=True)
            self.done_us += lasts_us
        self.now_us += 12

    def python(self, lasts_us: int) -> None:
        self.now_us += lasts_us

    def mark(self, category: str, name: str, start_us: int, end_us: int) -> None:
        on_gpu = category == "kernel" or category.startswith("gpu")
        self._event(category, name, start_us, end_us - start_us, {"device": 0, "stream": 7} if on_gpu else None, on_gpu=on_gpu)

    def _event(self, category: str, name: str, start_us: int, lasts_us: int, args: dict[str, Any] | None = None, *,
               on_gpu: bool = False) -> None:  # fmt: skip
        place = {"pid": 0, "tid": 7} if on_gpu else {"pid": 100, "tid": 100}
        event = {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": lasts_us, "args": args or {}}
        self.events.append(event | place)

    def read(self) -> Trace:
        facts = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a GPU"}], "traceEvents": self.events}
        return read_kineto_bytes(json.dumps(facts).encode())


def iterations(count: int, ops: list[tuple[str, list[str]]], call: str = "cudaLaunchKernel") -> Profile:
    profile = Profile()
    for _ in range(count):
        for op, kernels in ops:
            profile.launch(op, kernels, call=call)
        profile.python(26)
    return profile


COPY = ("aten::copy_", ["Memcpy HtoD (Pinned -> Device)"])
TRAINING = [("aten::mm", ["gemm"]), ("compiled", ["triton_poi_fused_mul"]), ("compiled", ["multi_tensor_apply_kernel"])]


def test_repeated_launch_sequences_are_steps() -> None:
    """GIVEN iterations of three launches and 26 us of Python THEN each iteration is a step of 62 us on the host and 300 us on
    the GPU."""
    trace = iterations(4, TRAINING).read()
    assert trace.provenance["steps_from"] == "repeats" and len(trace.steps) == 4
    assert np.diff(trace.steps.start_ns).tolist() == [62 * US] * 3
    of = pace(trace)
    assert of is not None and (of.device_ns, of.gpu_time_ns, of.limit) == (300 * US, 300 * US, "device")


def test_a_step_cut_off_by_the_end_of_the_recording_is_incomplete() -> None:
    profile = iterations(3, TRAINING)
    profile.launch(*TRAINING[0])
    trace = profile.read()
    assert trace.steps.kind.tolist() == [StepKind.STEADY] * 3 + [StepKind.INCOMPLETE]


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([("aten::mm", ["gemm"]), ("aten::relu", ["relu"])], id="repeated layers"),
        pytest.param([COPY], id="only copies"),
        pytest.param([("aten::mm", ["gemm"]), ("aten::add", ["add<at::native::{lambda()#1}>"])], id="kernels with lambdas"),
    ],
)
def test_a_recording_is_one_step_if_its_repeated_ops_are_not_iterations(ops: list[tuple[str, list[str]]]) -> None:
    profile = iterations(6, ops)
    trace = profile.read()
    assert trace.provenance["steps_from"] in ("whole", "inference") and len(trace.steps) == 1
    of = pace(trace)
    assert of is not None and of.pace_ns == (profile.done_us - 1_000) * US  # the step ends with the last kernel


@pytest.mark.parametrize(("copies", "steps"), [(True, 4), (False, 1)], ids=["tokens are copied", "layers"])
def test_repeated_ops_with_different_kernels_form_steps_if_they_copy_to_the_host(copies: bool, steps: int) -> None:
    """GIVEN four iterations of a server with different kernels WHEN each iteration copies a result to the host THEN each
    iteration is a step of 36 us."""
    profile = Profile()
    for number in range(4):
        profile.launch("aten::mm", [f"gemm_{number}"])
        profile.launch("cudaGraphLaunch", [f"decode_{number}"])
        profile.launch("aten::copy_", ["Memcpy DtoH (Device -> Pinned)" if copies else f"add_{number}"])
    trace = profile.read()
    assert np.diff(trace.steps.start_ns).tolist() == [36 * US] * (steps - 1)


@pytest.mark.parametrize(
    ("extra", "tokens", "first_us"),
    [
        pytest.param(1, 3, 48, id="the prompt needs one more op"),
        pytest.param(4, 3, 48, id="the prompt is processed by four ops before the first token"),
        pytest.param(3, 3, 36, id="the prompt needs as many ops as a token"),
        pytest.param(-1, 3, 24, id="the first iteration has fewer ops"),
        pytest.param(-1, 4, 24, id="the kernels change after the first token"),
        pytest.param(6, 3, None, id="the first iteration is twice as long as the others"),
        pytest.param(1, 2, None, id="two tokens"),
    ],
)
def test_iterations_are_found_although_the_first_one_differs(extra: int, tokens: int, first_us: int | None) -> None:
    """GIVEN a first iteration whose ops process a prompt WHEN three iterations follow, one for each token THEN each iteration
    is a step. No steps are found if the first iteration is twice as long, or if only two tokens follow."""
    profile = Profile()
    for number in range(extra):
        profile.launch(f"aten::prompt{number}", ["prompt"])
    if extra < 0:
        profile.launch("aten::mm", ["gemm"])
        profile.launch("aten::copy_", ["Memcpy DtoH (Device -> Pinned)"])
    for number in range(tokens):
        profile.launch("aten::mm", [f"gemm_{(number + 2) // 3}"])
        profile.launch("aten::add", ["add"])
        profile.launch("aten::copy_", ["Memcpy DtoH (Device -> Pinned)"])
    steps = profile.read().steps
    assert np.diff(steps.start_ns).tolist() == ([] if first_us is None else [first_us * US, *[36 * US] * (len(steps) - 2)])


@pytest.mark.parametrize(("waits", "expected_us"), [(False, [36, 36, 36, 34]), (True, [400, 310, 310, 310])])
def test_the_last_step_ends_before_the_profilers_final_wait_for_the_gpu(waits: bool, expected_us: list[int]) -> None:
    """GIVEN four iterations of 300 us on the GPU WHEN each iteration waits for the GPU THEN the last step includes its own
    wait. The final wait of the profiler is not included."""
    profile = Profile()
    for _ in range(4):
        for op, kernels in TRAINING:
            profile.launch(op, kernels)
        if waits:
            profile.mark("cuda_runtime", "cudaDeviceSynchronize", profile.now_us, profile.done_us)
            profile.now_us = profile.done_us
    profile.mark("cuda_runtime", "cudaDeviceSynchronize", profile.now_us, profile.done_us + 200)
    assert profile.read().steps.duration_ns.tolist() == [us * US for us in expected_us]


@pytest.mark.parametrize("kernels", [["gemm"], []], ids=["GPU", "CPU"])
@pytest.mark.parametrize(
    ("first", "then", "count"),
    [
        pytest.param([8, 784], [8, 10], 5, id="each iteration reads a new batch"),
        pytest.param([8, 784], [8, 784], 1, id="a layer reads what the layer before it has written"),
    ],
)
def test_a_repeated_sequence_is_a_step_if_it_begins_with_new_data(
    kernels: list[str], first: list[int], then: list[int], count: int
) -> None:
    """GIVEN an inference loop without marks and copies WHEN each iteration reads a new batch THEN each iteration is a step of
    24 us."""
    profile = Profile()
    for _ in range(5):
        profile.launch("aten::linear", kernels, 10, reads=first)
        profile.launch("aten::relu", kernels, 10, reads=then)
    trace = profile.read()
    assert len(trace.steps) == count
    assert set(np.diff(trace.steps.start_ns).tolist()) <= {24 * US}


@pytest.mark.parametrize(
    ("first", "last", "count"),
    [
        pytest.param("aten::embedding", "aten::argmax", 5, id="a loop that generates tokens"),
        pytest.param("aten::embedding", "aten::embedding", 5, id="batches for a model with two embeddings"),
        pytest.param("aten::embedding", "aten::relu", 1, id="layers with one embedding each"),
        pytest.param("aten::layer_norm", "aten::relu", 1, id="layers"),
    ],
)
def test_a_repeated_sequence_is_a_step_if_it_has_two_token_ops(first: str, last: str, count: int) -> None:
    """GIVEN a loop without marks, copies and shapes WHEN it generates tokens THEN each iteration is a step of 36 us. Layers of
    a model are not steps."""
    profile = Profile()
    for _ in range(5):
        profile.launch(first, ["first"])
        profile.launch("aten::linear", ["gemm"])
        profile.launch(last, ["last"])
    trace = profile.read()
    assert np.diff(trace.steps.start_ns).tolist() == [36 * US] * (count - 1)


@pytest.mark.parametrize(
    ("indices", "count"),
    [
        pytest.param([4, 50], 1, id="layers of a vector quantizer"),
        pytest.param([4, 1], 6, id="a loop that generates tokens for 4 texts"),
        pytest.param([4], 6, id="a server that generates tokens for 4 requests"),
    ],
)
def test_looking_up_many_selected_entries_does_not_begin_a_step(indices: list[int], count: int) -> None:
    """GIVEN a first layer, and then six repetitions of a distance, an argmax and an embedding WHEN the embedding looks up many
    entries THEN the repetitions are not steps."""
    profile = Profile()
    profile.launch("aten::conv1d", ["conv"], reads=[4, 1, 800])
    for _ in range(6):
        profile.launch("aten::cdist", ["distance"], reads=[200, 64])
        profile.launch("aten::argmax", ["argmax"], reads=[200, 1024])
        profile.launch("aten::embedding", ["lookup"], reads=[1024, 64], looks_up=indices)
    assert len(profile.read().steps) == count


def test_without_known_launches_all_gpu_work_belongs_to_the_recording() -> None:
    """GIVEN an op from 1000 to 1010 us WHEN a kernel without a launch runs from 5000 to 5300 us THEN the step lasts 4300 us and
    contains the kernel."""
    profile = Profile()
    profile.launch("aten::mm", [])
    profile.mark("kernel", "gemm", 5_000, 5_300)
    of = pace(profile.read())
    assert of is not None and (of.pace_ns, of.gpu_time_ns) == (4_300 * US, 300 * US)


def test_a_recording_in_which_no_launches_repeat_is_one_step() -> None:
    profile = iterations(2, TRAINING)
    profile.launch("aten::sum", ["reduce"])
    assert len(profile.read().steps) == 1


def test_each_graph_launch_is_a_step_that_starts_with_its_preparation() -> None:
    """GIVEN a warm-up and five iterations WHEN each iteration fills a tensor and then launches a CUDA graph THEN each iteration
    is a step. The last step does not count, because the recording ends with the launch of the last step."""
    profile = Profile()
    profile.launch("aten::mm", ["gemm"])
    profile.launch("aten::relu", ["relu"])
    for place in range(5):
        profile.launch("aten::fill_", ["fill"])
        profile.launch("aten::graph", ["gemm", "relu", "multi_tensor_apply_kernel"], call="cudaGraphLaunch")
        profile.python(16 + place)
    trace = profile.read()
    assert trace.provenance["steps_from"] == "repeats"
    assert np.diff(trace.steps.start_ns).tolist() == [40 * US, 41 * US, 42 * US, 43 * US]
    assert trace.steps.kind.tolist() == [StepKind.STEADY] * 4 + [StepKind.INCOMPLETE]  # optimizer kernels train


@pytest.mark.parametrize(("longer_us", "shares", "steps"), [(0, 0.2, 2), (300, 60 / 532, 3)])
def test_the_last_iteration_does_not_count_if_it_is_the_shortest(longer_us: int, shares: float, steps: int) -> None:
    """GIVEN three iterations of 100 us, each with a copy of 10 us, a kernel of 10 us and then Python code of 76 us WHEN the
    recording ends with the last launch THEN the GPU is busy for 40 of 200 us. WHEN the last kernel starts later THEN the GPU is
    busy for 60 of 532 us."""
    profile = Profile()
    profile.done_us = 0
    for place in range(3):
        profile.launch("aten::copy_", ["Memcpy HtoD (Pinned -> Device)"], lasts_us=10)
        profile.python(longer_us if place == 2 else 0)
        profile.launch("aten::mm", ["gemm"], lasts_us=10)
        profile.python(76)
    found = summarize(profile.read())
    assert found.pace is not None and found.pace.steps == steps
    assert found.busy_shares["cuda:0"] == pytest.approx(shares)


def test_gpu_step_marks_define_the_steps_if_the_host_has_none() -> None:
    """GIVEN step marks only on the GPU timeline THEN a step begins on the host when its first kernel is launched. The kernels
    of step 8 are launched from 1000 us on, and the kernels of step 9 from 1062 us on."""
    profile = iterations(2, [("aten::mm", ["gemm"]), ("aten::add", ["add"]), ("aten::mul", ["mul"])])
    profile.mark("gpu_user_annotation", "ProfilerStep#8", 1_100, 1_400)
    profile.mark("gpu_user_annotation", "ProfilerStep#9", 1_400, 1_700)
    trace = profile.read()
    assert trace.provenance["steps_from"] == "gpu marks"
    assert trace.steps.number.tolist() == [8, 9]
    assert np.diff(trace.steps.start_ns).tolist() == [62 * US]


def test_gpu_step_marks_are_ignored_if_their_numbers_decrease() -> None:
    profile = iterations(2, [("aten::mm", ["gemm"]), ("aten::add", ["add"]), ("aten::mul", ["mul"])])
    profile.mark("gpu_user_annotation", "ProfilerStep#9", 1_100, 1_400)
    profile.mark("gpu_user_annotation", "ProfilerStep#8", 1_400, 1_700)
    assert profile.read().provenance["steps_from"] != "gpu marks"


def marked(profile: Profile) -> Trace:
    profile.mark("user_annotation", "ProfilerStep#5", 1_000, profile.now_us)
    return profile.read()


def phases(trace: Trace) -> list[tuple[str, int]]:
    names = [trace.strings[name] for name in trace.phases.name.tolist()]
    return list(zip(names, (trace.phases.duration_ns // US).tolist(), strict=True))


def test_host_work_before_a_copy_is_not_part_of_the_copy_phase() -> None:
    """GIVEN 200 us of preparation on the CPU and 10 us of copying THEN the copy phase takes only 10 us."""
    profile = Profile()
    profile.python(200)
    profile.launch(*COPY)
    profile.launch("aten::mm", ["gemm"])
    assert phases(marked(profile)) == [("other", 200), ("h2d", 10), ("forward", 14)]


def test_ops_on_the_cpu_do_not_begin_a_phase() -> None:
    """GIVEN an `add_` on the CPU between an optimizer and a wait for the next batch THEN no forward pass begins between
    them."""
    profile = Profile()
    profile.launch("aten::mm", ["gemm"])
    profile.mark("user_annotation", "Optimizer.step#SGD.step", 1_012, 1_032)
    profile.python(40)
    profile.mark("cpu_op", "aten::add_", profile.now_us, profile.now_us + 5)
    profile.python(30)
    profile.mark("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1_082, 1_182)
    profile.python(100)
    profile.launch("aten::mm", ["gemm"])
    assert phases(marked(profile)) == [("forward", 12), ("optimizer", 20), ("loader", 150), ("forward", 12)]


def test_iterations_marked_by_an_inference_server_are_steps() -> None:
    """GIVEN ranges around a prefill and two decodes WHEN these iterations launch different kernels THEN each range is a
    step."""
    for names in (
        ["step[EXTEND bs=2 toks=900]", "step[DECODE bs=2]", "step[DECODE bs=2]"],
        ["execute_context_2(900)_generation_0(0)", *["execute_context_0(0)_generation_2(2)"] * 2],
        ["batch 0", "batch 1", "batch 2"],
    ):
        profile = Profile()
        for name, count in zip(names, (3, 2, 2), strict=True):
            begun_us = profile.now_us
            for place in range(count):
                profile.launch("aten::mm", [f"gemm_{count}_{place}"])
            profile.mark("user_annotation", name, begun_us, profile.now_us)
            profile.python(4)
        trace = profile.read()
        assert trace.provenance["steps_from"] == "ranges"
        assert np.diff(trace.steps.start_ns).tolist() == [40 * US, 28 * US]
        of = pace(trace)
        assert of is not None and of.device_ns == 200 * US
    # WHEN more than half of all kernels are launched outside the ranges THEN the ranges mark no steps
    for place in range(8):
        assert profile.read().provenance["steps_from"] == "ranges"
        profile.launch("aten::mm", [f"other_{place}"])
    assert profile.read().provenance["steps_from"] != "ranges"


def test_python_time_around_the_range_of_a_loader_is_loader_time() -> None:
    profile = Profile()
    profile.python(4)
    profile.mark("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1_004, 1_100)
    profile.python(96)
    profile.launch("aten::mm", ["gemm"])
    assert phases(marked(profile)) == [("loader", 100), ("forward", 12)]


def test_steps_that_accumulate_gradients_are_training_steps() -> None:
    """GIVEN two steps with a kernel for gradients, but without an autograd backward pass WHEN only the second step runs the
    optimizer THEN both steps are training steps."""
    profile = Profile()
    for step in range(2):
        begun_us = profile.now_us
        profile.launch("aten::convolution", ["cudnn_wgrad"])
        if step:
            profile.mark("user_annotation", "Optimizer.step#SGD.step", profile.now_us, profile.now_us + 5)
            profile.python(10)
        profile.mark("user_annotation", f"ProfilerStep#{step}", begun_us, profile.now_us)
    assert profile.read().steps.kind.tolist() == [StepKind.STEADY, StepKind.STEADY]


def test_steps_with_an_all_reduce_are_not_evaluation_steps() -> None:
    kernels = {"ncclDevKernel_AllReduce_Sum_f32_RING_LL": StepKind.STEADY, "gemm": StepKind.EVALUATION}
    for kernel, kind in kernels.items():
        profile = Profile()
        profile.launch("aten::mm", ["gemm"])
        profile.launch("aten::op", [kernel])
        assert marked(profile).steps.kind.tolist() == [kind]


def test_time_before_the_first_phase_of_a_recorder_profile_belongs_to_other(tmp_path: Any) -> None:
    profile = Profile()
    profile.python(200)
    profile.launch("aten::mm", ["gemm"])
    profile.mark("user_annotation", "ProfilerStep#5", 1_000, profile.now_us)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"traceEvents": profile.events}))
    assert phases(read_kineto(path, marks_are_steps=True)) == [("other", 200), ("forward", 12)]


@pytest.mark.parametrize(("sizes", "steps"), [([8, 4] * 4, 3), ([8, 4, 2] * 3, 2), ([8, 4, 8, 8, 4, 8, 4, 4], 8), ([8] * 4, 4)])
def test_alternating_optimizers_of_one_class_count_as_several_optimizers(sizes: list[int], steps: int) -> None:
    """GIVEN optimizer steps of one class WHEN the sizes of their parameters repeat with a fixed period THEN there are several
    optimizers, and only the first one ends training steps. The first step contains only the first optimizer, so it is
    incomplete."""
    profile = Profile()
    for size in sizes:
        profile.launch("aten::mm", ["gemm"])
        begin_us = profile.now_us
        profile.launch("aten::_foreach_add_", ["multi_tensor_apply_kernel"], reads=[size])
        profile.mark("user_annotation", "Optimizer.step#Adam.step", begin_us, profile.now_us)
    trace = profile.read()
    assert (trace.steps.kind != StepKind.INCOMPLETE).sum() == steps


@pytest.mark.parametrize(("last", "steps"), [("multi_tensor_apply_kernel", 4), ("gemm", 1)])
def test_repeated_kernels_of_a_recording_without_host_events_are_steps(last: str, steps: int) -> None:
    """GIVEN three kernels that repeat four times in 1 ms each, without host events WHEN the third kernel belongs to an
    optimizer THEN each repetition is a training step of 1 ms. A step has 450 us of work, or 470 us with the copy."""
    profile = Profile()
    for step in range(4):
        for start_us, lasts_us, kernel in ((0, 300, "gemm"), (400, 100, "gemm"), (700, 50, last)):
            profile.mark("kernel", kernel, 1000 * (step + 1) + start_us, 1000 * (step + 1) + start_us + lasts_us)
    at = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "pid": 0, "tid": 9}
    profile.events += [at | {"ts": 1000 * step + 800, "dur": 20, "args": {"device": 0, "stream": 9}} for step in (1, 2, 3, 4)]
    trace = profile.read()
    assert len(trace.steps) == steps
    if steps > 1:
        found = pace(trace)
        # The time from the end of the last kernel to the next step is not recorded, so the last step does not count.
        assert trace.steps.kind.tolist() == [StepKind.STEADY] * 3 + [StepKind.INCOMPLETE]
        assert found is not None and (found.pace_ns, found.gpu_time_ns) == (1000 * US, 470 * US)


def test_iterations_of_a_recording_without_ops_begin_with_their_first_launch() -> None:
    """GIVEN four iterations of 200 us WHEN no op was recorded, and two threads launch two kernels and a copy of 50 us each THEN
    each iteration begins with the launch of its first kernel. The last iteration does not count, because it is the shortest."""
    profile = Profile()
    for _ in range(4):
        for kernel in ("gemm", "relu", "Memcpy DtoH (Device -> Pinned)"):
            profile.launch("aten::op", [kernel], lasts_us=50)
        profile.python(164)
    profile.events = [event for event in profile.events if event["cat"] != "cpu_op"]
    for event in profile.events:
        if event["cat"] == "cuda_runtime" and event["args"]["correlation"] % 3 == 2:
            event["tid"] = 101
    trace = profile.read()
    assert trace.provenance["steps_from"] == "repeats"
    assert ((trace.steps.start_ns - trace.steps.start_ns[0]) // US).tolist() == [0, 200, 400, 600]
    found = pace(trace)
    assert found is not None and (found.steps, found.pace_ns, found.gpu_time_ns) == (3, 200 * US, 150 * US)


def test_iterations_of_one_graph_launch_are_one_step() -> None:
    """GIVEN a recording without ops WHEN one launch of a CUDA graph runs four iterations of 100 us THEN the four iterations are
    one step."""
    profile = Profile()
    profile.launch("aten::op", ["gemm", "Memcpy DtoH (Device -> Pinned)"] * 4, lasts_us=50, call="cudaGraphLaunch")
    profile.events = [event for event in profile.events if event["cat"] != "cpu_op"]
    trace = profile.read()
    found = pace(trace)
    assert (trace.provenance["steps_from"], len(trace.steps)) == ("whole", 1)
    assert found is not None and found.gpu_time_ns == 400 * US


@pytest.mark.parametrize(
    ("ranges", "outside", "trains", "source"),
    [
        pytest.param(["mlp"] * 4, 0, False, "ranges", id="a loop around a model"),
        pytest.param(["step 1", "step 2", "step 3", "step 4"], 1, True, "ranges", id="a training loop"),
        pytest.param(["mlp"] * 4, 1, False, "whole", id="layers and an op after the last layer"),
        pytest.param(["mlp", "mlp", "mlp", "attention"], 0, False, "whole", id="parts of a network"),
    ],
)
def test_ranges_are_iterations_if_all_work_was_launched_in_ranges_of_one_name(
    ranges: list[str], outside: int, trains: bool, source: str
) -> None:
    """GIVEN a recording without shapes, sequence numbers and optimizer ranges WHEN all work was launched in ranges of one name
    THEN each range is an iteration of 28 us."""
    profile = Profile()
    for name in ranges:
        begun_us = profile.now_us
        profile.launch("autograd::engine::evaluate_function: MmBackward0" if trains else "aten::mm", ["gemm"])
        profile.launch("aten::relu", ["relu"])
        profile.mark("user_annotation", name, begun_us, profile.now_us)
        profile.python(4)
    for _ in range(outside):
        profile.launch("aten::mm", ["head"])
    trace = profile.read()
    assert trace.provenance["steps_from"] == source
    assert np.diff(trace.steps.start_ns).tolist() == ([28 * US] * 3 if source == "ranges" else [])


class CountedEvents(list[StepEvent]):
    """Counts how many events are read one by one."""

    read = 0

    def __iter__(self) -> Iterator[StepEvent]:
        self.read += len(self)
        return super().__iter__()


def test_finding_the_events_of_one_step_mark_does_not_read_all_events() -> None:
    """GIVEN 200 marks with a copy and an op each THEN all events are read only a few times, not once for each mark."""
    names = ("h2d", "")
    events = CountedEvents(
        StepEvent(10 * place, 10 * place + 5, names[place % 2], PLAIN, False, True) for place in range(400)
    )
    batches = BatchEnds(HostSpans.empty(), events, Strings())
    marks = [(20 * mark, 20 * mark + 20) for mark in range(200)]
    assert all(batches.between(begin_ns, end_ns) == [] for begin_ns, end_ns in marks)
    assert events.read <= 10 * len(events)

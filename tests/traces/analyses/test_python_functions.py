"""Tests the GPU time of Python functions. A kernel counts once for the function that launched it and once for each caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from traces.analyses.python_functions import function_changes, function_times, without_folders
from traces.chrome.export import export_chrome
from traces.figures.measure import work_rows
from traces.kineto import read_kineto
from traces.model.trace import NONE, Device, DeviceKind, DeviceSpans, HostKind, HostSpans, Steps, Strings, Thread, Trace

US = 1000
PYTHON, OP, RUNTIME = HostKind.PYTHON, HostKind.OP, HostKind.RUNTIME


def made(*spans: tuple[int, HostKind, str, int, int], **sequences: int) -> Trace:
    """Return a trace of one thread, in which each runtime call launches a kernel of 5 us.

    `spans` contains the depth, kind, name, start and end (in microseconds) of each span. `sequences` contains the sequence
    numbers of ops that created an autograd node. The names of such nodes end in "Backward0".
    """
    strings, parents = Strings(), list[int]()
    rows, kernels = list[dict[str, Any]](), list[dict[str, Any]]()
    above: dict[int, int] = {-1: NONE}
    for depth, kind, name, begin_us, end_us in spans:
        above[depth] = len(rows)
        parents.append(above[depth - 1])
        row: dict[str, Any] = {"thread": 0, "kind": kind, "name": strings.add(name), "start_ns": begin_us * US}
        backward = name.endswith("Backward0")
        row |= {"duration_ns": (end_us - begin_us) * US, "sequence": sequences.get(name, NONE)}
        rows.append(row | {"forward_thread": 1 if backward else 0 if name in sequences else NONE})
        if kind == RUNTIME:
            kernel = {"device": 0, "stream": 7, "kind": DeviceKind.KERNEL, "name": strings.add("kernel")}
            kernels.append(kernel | {"start_ns": end_us * US, "duration_ns": 5 * US, "launch": above[depth]})
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    return Trace(
        strings=strings,
        devices=[Device(0, 0, "V100", 1 << 30)],
        threads=[Thread(0, 1, "main", "main")],
        steps=Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[1000 * US]),
        host=HostSpans.of(parent=parents, **columns),
        device=DeviceSpans.of(**{key: [row[key] for row in kernels] for key in kernels[0]}),
    )


def test_kernel_time_counts_for_the_launching_function_and_all_callers() -> None:
    trace = made(
        (0, PYTHON, "/home/ann/p/train.py(8): step", 0, 90),
        (1, PYTHON, "torch/nn/modules/linear.py(130): forward", 1, 50),
        (2, PYTHON, "<built-in function linear>", 2, 40),
        (3, OP, "aten::linear", 3, 30),
        (4, RUNTIME, "cudaLaunchKernel", 4, 6),
        (1, OP, "aten::add", 60, 80),
        (2, RUNTIME, "cudaLaunchKernel", 61, 63),
    )
    step, linear = function_times(trace)
    assert (step.name, linear.name) == ("p/train.py(8): step", "modules/linear.py(130): forward")
    assert (step.gpu_ns, step.own_gpu_ns, step.calls, step.host_ns) == (10 * US, 5 * US, 1, 90 * US)
    assert (linear.gpu_ns, linear.own_gpu_ns, linear.calls, linear.host_ns) == (5 * US, 5 * US, 1, 49 * US)


def test_function_times_are_read_from_op_stacks_if_calls_were_not_recorded() -> None:
    """GIVEN a profile of an older PyTorch release, in which each op lists its stack frames, innermost first THEN function times
    come from these frames. The backward pass has no frames."""
    trace = made(
        (0, OP, "aten::linear", 3, 30),
        (1, OP, "aten::addmm", 4, 20),
        (2, RUNTIME, "cudaLaunchKernel", 4, 6),
        (0, OP, "aten::add", 60, 80),
        (1, RUNTIME, "cudaLaunchKernel", 61, 63),
        (0, OP, "AddmmBackward0", 100, 140),
        (1, RUNTIME, "cudaLaunchKernel", 110, 112),
        **{"aten::addmm": 4, "AddmmBackward0": 4},
    )
    step, linear = "/home/ann/p/train.py(8): step", "torch/nn/modules/linear.py(130): forward"
    inner, outer = trace.strings.add(f"{linear};{step};{step}"), trace.strings.add(step)
    trace.host.stack[:] = [inner, inner, NONE, outer, NONE, NONE, NONE]
    found = {one.name: one for one in function_times(trace)}
    assert list(found) == ["p/train.py(8): step", "modules/linear.py(130): forward"]
    of_step, of_linear = found.values()
    assert (of_step.gpu_ns, of_step.own_gpu_ns, of_step.backward_ns, of_step.host_ns) == (15 * US, 5 * US, 5 * US, 47 * US)
    assert (of_linear.gpu_ns, of_linear.own_gpu_ns, of_linear.backward_ns) == (10 * US, 10 * US, 5 * US)
    assert of_linear.host_ns == 27 * US


@pytest.mark.parametrize("from_stacks", [False, True])
def test_times_of_functions_are_means_per_step(from_stacks: bool) -> None:
    """GIVEN the same two calls WHEN the calls are in two steps instead of one THEN the time per step is half as long."""
    spans = [(PYTHON, "train.py(8): step", 0, 40), (OP, "aten::linear", 3, 30), (RUNTIME, "cudaLaunchKernel", 4, 6)]
    times = []
    for length_us in (1000, 500):
        trace = made(*((n, kind, name, at + a, at + b) for at in (0, 500) for n, (kind, name, a, b) in enumerate(spans)))
        if from_stacks:
            trace.host.stack[trace.host.kind == OP] = trace.strings.find("train.py(8): step")
            trace.host.kind[trace.host.kind == PYTHON] = HostKind.ANNOTATION
        count = 1000 // length_us
        starts_ns = [length_us * US * number for number in range(count)]
        trace.steps = Steps.of(rank=[0] * count, number=range(count), start_ns=starts_ns, duration_ns=[length_us * US] * count)
        (one,) = function_times(trace)
        times.append((one.gpu_ns, one.own_gpu_ns, one.host_ns, one.calls))
    host_ns = 27 * US if from_stacks else 40 * US
    assert times[1] == (5 * US, 5 * US, host_ns, 0 if from_stacks else 1)
    assert times[0] == tuple(2 * figure for figure in times[1])


def test_functions_that_moved_to_other_lines_are_matched_unless_ambiguous() -> None:
    def at(line: int, second: int) -> Trace:
        return made(
            (0, PYTHON, "train.py(8): step", 0, 90),
            (1, PYTHON, f"torch/nn/modules/linear.py({line}): forward", 1, 50),
            (2, OP, "aten::linear", 3, 30),
            (3, RUNTIME, "cudaLaunchKernel", 4, 6),
            (1, PYTHON, f"model.py({second}): forward", 51, 60),
            (1, PYTHON, f"model.py({second + 50}): forward", 61, 70),
        )

    names = {change.name: change for change in function_changes(at(130, 7), at(134, 9))}
    moved = names["modules/linear.py(130; 134): forward"]
    assert moved.recorded is not None and moved.replayed is not None and moved.delta_ns == 0
    assert names["train.py(8): step"].delta_ns == 0
    assert names.keys().isdisjoint({"modules/linear.py(130): forward", "model.py(7; 9): forward"})


def test_the_times_of_a_recursive_function_are_counted_once() -> None:
    trace = made(
        (0, PYTHON, "tree.py(3): walk", 0, 90),
        (1, PYTHON, "tree.py(3): walk", 10, 80),
        (2, PYTHON, "tree.py(3): walk", 20, 70),
        (3, OP, "aten::relu", 30, 60),
        (4, RUNTIME, "cudaLaunchKernel", 31, 33),
    )
    [walk] = function_times(trace)
    assert (walk.gpu_ns, walk.own_gpu_ns, walk.calls, walk.host_ns) == (5 * US, 5 * US, 3, 90 * US)


def test_the_backward_pass_belongs_to_the_function_of_its_forward_op() -> None:
    trace = made(
        (0, PYTHON, "net.py(5): forward", 0, 40),
        (1, OP, "aten::mul", 5, 30),
        (2, RUNTIME, "cudaLaunchKernel", 6, 8),
        (0, PYTHON, "train.py(9): main", 50, 200),
        (1, OP, "MulBackward0", 60, 100),
        (2, RUNTIME, "cudaLaunchKernel", 61, 63),
        (2, RUNTIME, "cudaLaunchKernel", 71, 73),
        **{"aten::mul": 7, "MulBackward0": 7},
    )
    times = {one.name: one for one in function_times(trace)}
    assert (times["net.py(5): forward"].gpu_ns, times["net.py(5): forward"].backward_ns) == (15 * US, 10 * US)
    assert times["train.py(9): main"].gpu_ns == 0


def test_function_changes_show_the_time_of_directly_launched_kernels() -> None:
    one = [(0, PYTHON, "a.py(1): f", 0, 50), (1, OP, "aten::relu", 5, 40), (2, RUNTIME, "cudaLaunchKernel", 6, 8)]
    two = [*one, (0, PYTHON, "a.py(9): g", 60, 99), (1, OP, "aten::relu", 61, 90), (2, RUNTIME, "cudaLaunchKernel", 62, 64)]
    first, second = function_changes(made(*one), made(*two))
    assert (first.name, first.recorded, first.own_delta_ns) == ("a.py(9): g", None, 5 * US)
    assert (second.name, second.delta_ns) == ("a.py(1): f", 0)


def test_a_trace_without_stacks_has_no_function_times() -> None:
    assert function_times(made((0, OP, "aten::relu", 5, 40), (1, RUNTIME, "cudaLaunchKernel", 6, 8))) == []
    assert function_times(Trace()) == []


def test_names_of_functions_omit_folders_outside_the_import_path() -> None:
    trace = made(
        (0, PYTHON, "/home/ann/p/train.py(8): step", 0, 90),
        (1, PYTHON, "torch/nn/modules/linear.py(130): forward", 1, 50),
        (2, OP, "aten::linear", 3, 30),
        (3, RUNTIME, "cudaLaunchKernel", 4, 6),
    )
    cut = without_folders(trace)
    assert "p/train.py(8): step" in cut.strings.texts and not any("ann" in text for text in cut.strings.texts)
    assert "torch/nn/modules/linear.py(130): forward" in cut.strings.texts
    assert function_times(cut) == function_times(trace)


@pytest.mark.parametrize("name", ["a100_switch_transformer", "h100_transformer_toy", "mi300x_resnet18_no_pool"])
def test_every_kernel_of_real_recordings_belongs_to_a_function(shared_traces: Path, tmp_path: Path, name: str) -> None:
    """All kernels of these recordings belong to Python functions, also after an export and an import."""
    trace = read_kineto(shared_traces / f"{name}.json.gz")
    times = function_times(trace)
    steps = max(sum(trace.steps.kind != 255), 1)
    total_ns = int(trace.device.duration_ns[work_rows(trace)].sum())
    assert max(one.gpu_ns for one in times) <= sum(one.own_gpu_ns for one in times) + len(times)
    assert sum(one.own_gpu_ns for one in times) == pytest.approx(total_ns / steps, rel=0.001)
    export_chrome(trace, tmp_path / "t.json")
    assert function_times(read_kineto(tmp_path / "t.json")) == times

# mypy: allow-untyped-calls
"""Tests that a script that profiles itself sees the kernels of the virtual GPU. Each test runs in a fork of an interpreter that
has imported torch (warm.py)."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from replayer.errors import NotEmulated
from replayer.timing.timeline.profile_window import with_launches
from tests.replayer.ranks import run_ranks
from traces import read_kineto
from traces.figures.measure import op_of
from traces.model.trace import NONE, DeviceKind, DeviceSpans, HostSpans, Trace


def test_the_profiler_of_the_script_sees_the_replayed_kernels() -> None:
    """GIVEN a profiled training step WHEN the profile is summarized and exported THEN its kernels belong to its ops."""

    def body(rank: int) -> None:
        model, x = nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
        model(x).sum().backward()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiled:
            with record_function("## forward ##"):
                y = model(x)
                with record_function("## loss ##"):
                    loss = y.sum()
            loss.backward()
        averages = {row.key: row for row in profiled.key_averages() if row.device_type.name == "CPU"}
        assert averages["aten::addmm"].device_time_total > 0 and averages["aten::addmm"].self_device_time_total > 0
        assert averages["## forward ##"].device_time_total >= averages["aten::addmm"].device_time_total
        assert not [name for name in averages if name.startswith(("PythonSubclass", "prims::"))]
        assert "Self CUDA" in profiled.key_averages().table(sort_by="cuda_time_total")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.json"
            profiled.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
            kinds = Counter(event.get("cat") for event in events)
            assert kinds["cuda_runtime"] >= kinds["kernel"] > 4 and kinds["user_annotation"], kinds
            # THEN on the GPU, each range contains the kernels that were launched directly in it, as in Kineto's profiles
            on_gpu = {event["name"]: event for event in events if event.get("cat") == "gpu_user_annotation"}
            for name, kernel in {"## forward ##": "aten::addmm", "## loss ##": "aten::sum"}.items():
                begin_us, end_us = on_gpu[name]["ts"], on_gpu[name]["ts"] + on_gpu[name]["dur"]
                own = [event for event in events if event.get("cat") == "kernel" and begin_us <= event["ts"] < end_us]
                assert {event["name"] for event in own} == {kernel}
                assert (own[0]["pid"], own[0]["tid"]) == (on_gpu[name]["pid"], on_gpu[name]["tid"])
                shown = [one for one in profiled.events() if one.device_type.name == "CUDA" and one.name in (name, kernel)]
                spans_us = [(one.time_range.start, one.time_range.end) for one in shown if one.name == kernel]
                [on_gpu_us] = [(one.time_range.start, one.time_range.end) for one in shown if one.name == name]
                assert len(own) == 1 and on_gpu_us in spans_us
            trace = read_kineto(path)
        kernels = trace.device.take(trace.device.launch >= 0)
        assert len(kernels) == kinds["kernel"] and trace.devices[0].name
        texts = [trace.strings[name] for name in trace.host.name.tolist()]
        assert {"aten::addmm", "aten::linear", "AddmmBackward0", "## forward ##"} <= set(texts)
        linear, addmm = texts.index("aten::linear"), texts.index("aten::addmm")
        assert trace.host.start_ns[linear] <= trace.host.start_ns[addmm]
        assert trace.host.end_ns[linear] >= trace.host.end_ns[addmm]

    run_ranks(1, body)


def test_the_profiler_of_the_script_sees_the_memory_of_each_op() -> None:
    """GIVEN two ops in a range THEN each op has the bytes that it allocated, and the range has their sum."""

    def body(rank: int) -> None:
        x = torch.ones(1024, device="cuda")
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, profile_memory=True) as profiled:
            with record_function("## both ##"):
                kept = [x.sin(), torch.cat([x, x])]
            kept.pop(0)
        averages = {row.key: row for row in profiled.key_averages() if row.device_type.name == "CPU"}
        of_op = {name: averages[name].self_device_memory_usage for name in ("aten::sin", "aten::cat")}
        assert of_op == {"aten::sin": 4096, "aten::cat": 8192}, of_op
        both = averages["## both ##"]
        assert (both.device_memory_usage, both.self_device_memory_usage) == (12288, 0)
        assert sum(one.self_device_memory_usage for one in profiled.events()) == 8192  # freed memory is not attributed to an op
        assert "Self CUDA Mem" in profiled.key_averages().table()
        # THEN the profile contains no function of this tool
        assert not [name for name in averages if name.startswith("replayer/")]
        # THEN an export that needs Kineto's memory events raises NotEmulated with the name of the call
        with pytest.raises(NotEmulated, match=r"export_memory_timeline is not emulated.*_record_memory_history"):
            profiled.export_memory_timeline("memory.html", device="cuda:0")

    run_ranks(1, body)


def test_the_profiler_of_the_script_sees_copies_and_waits_and_shapes() -> None:
    """The profile contains each copy and each wait. It contains shapes if the script asks for them."""

    def body(rank: int) -> None:
        def profiled(*, record_shapes: bool) -> Trace:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=record_shapes) as made:
                x = torch.ones(64, 3).cuda()
                (x.half() @ torch.ones(3, 5).cuda().half()).sum()
                with torch.no_grad():
                    torch.relu(x)
                torch.relu(x)
                torch.cuda.synchronize()
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "step.json"
                made.export_chrome_trace(str(path))
                return read_kineto(path)

        found = profiled(record_shapes=True)
        texts = [found.strings[name] for name in found.host.name.tolist()]
        assert texts.count("aten::copy_") == 4 and "cudaStreamSynchronize" in texts
        of_relu = found.host.sequence[[text == "aten::relu" for text in texts]]
        assert (of_relu != NONE).tolist() == [False, True]  # only the second relu has a gradient
        copies = found.device.launch[found.device.kind == DeviceKind.MEMCPY]
        ops = found.host.parent[copies]
        assert [found.strings[shapes] for shapes in found.host.shapes[ops].tolist()] == ["64,3;64,3", "3,5;3,5"]
        assert not (profiled(record_shapes=False).host.shapes >= 0).any()

    run_ranks(1, body)


def test_profiled_ops_never_overlap_partially() -> None:
    """The script runs reads, and ops with the same name on the host and on the GPU. In the profile, all ops are nested."""

    def body(rank: int) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
        optimizer = torch.optim.Adam(model.parameters())

        def train() -> None:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4).cuda()).sum()
            loss.backward()
            optimizer.step()
            loss.item()

        train()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as made:
            train()
            train()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.json"
            made.export_chrome_trace(str(path))
            found = read_kineto(path)
        host = found.host
        reads = [row for row in range(len(host)) if found.strings[host.name[row]] == "aten::_local_scalar_dense"]
        waits = [row for row in range(len(host)) if found.strings[host.name[row]] == "cudaStreamSynchronize"]
        assert len(reads) > len(waits) >= 2  # Adam reads its step counts without waiting
        assert {int(row) for row in host.parent[waits]} & set(reads)  # the wait is inside the read of the loss
        for row in range(len(host)):
            if (outer := host.parent[row]) >= 0:
                assert host.start_ns[outer] <= host.start_ns[row]
                assert host.start_ns[row] + host.duration_ns[row] <= host.start_ns[outer] + host.duration_ns[outer]
        assert "partial-overlap" not in found.problems

    run_ranks(1, body)


def test_profiled_stacks_contain_functions_of_the_script_but_not_of_trace() -> None:
    """GIVEN a profile with stacks THEN each call belongs to the script or torch, and is nested in its caller."""

    def body(rank: int) -> None:
        model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda(), torch.ones(2, 4, device="cuda")
        model(x).sum().backward()

        def train() -> None:
            model(x).sum().backward()

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True) as made:
            train()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.json"
            made.export_chrome_trace(str(path))
            calls = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "python_function"]
            trace = read_kineto(path)
        names = [call["name"] for call in calls]
        ours = [name for name in names if name.startswith(("replayer/", "traces/", "trace_replay/"))]
        assert not ours, ours
        ids = {call["args"]["Python id"] for call in calls}
        assert all(call["args"].get("Python parent id") in ids | {None} for call in calls)
        texts = [trace.strings[name] for name in trace.host.name.tolist()]
        row, around = texts.index("aten::addmm"), list[str]()
        while (row := int(trace.host.parent[row])) != NONE:
            around.append(texts[row])
        ends = [name.rpartition(": ")[2] for name in around]
        own = [end for end in ends if end in ("forward", "Linear_0", "Sequential_0", "train")]
        assert own == ["forward", "Linear_0", "forward", "Sequential_0", "train"], around

    run_ranks(1, body)


def test_ops_of_zero_duration_keep_their_launches() -> None:
    """GIVEN several ops that start at the same time THEN no op is nested in another op in the exported profile."""
    window = Trace()
    window.strings.add("")
    window.host = HostSpans.of(start_ns=[10, 10, 10, 50], duration_ns=[0, 0, 0, 9])
    window.device = DeviceSpans.of(start_ns=[20, 30, 40], duration_ns=[1, 1, 1], launch=[0, 1, 1])
    found = with_launches(window)
    starts, ends = found.host.start_ns[:4], found.host.end_ns[:4]
    assert (starts[1:] >= ends[:-1]).all() and (ends > starts).all() and starts[3] == 50 and ends[3] == 59
    launched = found.device.launch
    assert op_of(found).tolist() == [0, 1, 1]
    assert (found.host.start_ns[launched] >= starts[[0, 1, 1]]).all() and (found.host.end_ns[launched] <= ends[[0, 1, 1]]).all()
    assert np.all(found.host.duration_ns[launched] > 0)


def test_the_time_of_a_pageable_copy_is_not_subtracted_from_its_op() -> None:
    """The importer treats the call of such a copy as a wait for its whole duration (Note [Active host time])."""
    window = Trace()
    pageable, pinned = (window.strings.add(f"Memcpy HtoD ({memory} -> Device)") for memory in ("Pageable", "Pinned"))
    window.host = HostSpans.of(start_ns=[0, 100_000], duration_ns=[100_000, 50_000])
    window.device = DeviceSpans.of(
        start_ns=[100_000, 150_000], duration_ns=[10, 10], launch=[0, 1], name=[pageable, pinned], kind=[DeviceKind.MEMCPY] * 2
    )
    found = with_launches(window)
    launched = found.device.launch
    assert found.host.duration_ns[launched].tolist() == [1, 25_000]
    assert found.host.end_ns[launched].tolist() == [50_000, 125_000]
    assert op_of(found).tolist() == [0, 1]

# mypy: allow-untyped-calls
"""A script that profiles itself sees the virtual GPU's kernels. Runs in the warm interpreter, see warm.py."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from tests.replayer.ranks import run_ranks
from traces import read_kineto


def test_a_scripts_own_profile_holds_the_kernels_of_the_replay() -> None:
    """GIVEN a training step under torch.profiler WHEN it is summed up and exported THEN its kernels belong to its ops."""

    def body(rank: int) -> None:
        model, x = nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
        model(x).sum().backward()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiled:
            with record_function("## forward ##"):
                loss = model(x).sum()
            loss.backward()
        averages = {row.key: row for row in profiled.key_averages()}
        assert averages["aten::addmm"].device_time_total > 0 and averages["aten::addmm"].self_device_time_total > 0
        assert averages["## forward ##"].device_time_total >= averages["aten::addmm"].device_time_total
        assert not [name for name in averages if name.startswith(("PythonSubclass", "prims::"))]
        assert "Self CUDA" in profiled.key_averages().table(sort_by="cuda_time_total")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.json"
            profiled.export_chrome_trace(str(path))
            kinds = Counter(event.get("cat") for event in json.loads(path.read_text())["traceEvents"])
            assert kinds["kernel"] == kinds["cuda_runtime"] > 4 and kinds["user_annotation"], kinds
            trace = read_kineto(path)
        kernels = trace.device.take(trace.device.launch >= 0)
        assert len(kernels) == kinds["kernel"] and trace.devices[0].name
        texts = [trace.strings[name] for name in trace.host.name.tolist()]
        assert {"aten::addmm", "aten::linear", "AddmmBackward0", "## forward ##"} <= set(texts)
        linear, addmm = texts.index("aten::linear"), texts.index("aten::addmm")
        assert trace.host.start_ns[linear] <= trace.host.start_ns[addmm]
        assert trace.host.end_ns[linear] >= trace.host.end_ns[addmm]

    run_ranks(1, body)

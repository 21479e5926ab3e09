"""Tests which calls of Python functions an import keeps, and which functions belong to `trace` itself."""

from __future__ import annotations

import gzip
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import recordings
from traces.analyses.python_functions import function_times
from traces.format.trace_file import save
from traces.kineto import read_kineto_bytes
from traces.kineto.spans.python_calls import SHORT_NS, scripts_calls, without_short_calls
from traces.model.trace import NONE, DeviceSpans, HostKind, HostSpans, Strings, Thread, Trace
from traces.script import script_hooks

WITH_CALLS = [
    "a100_switch_transformer",
    "b200_eager_inference",
    "gpu_graph_vllm_decode",
    "h100_qwen05b_inference",
    "h100_transformer_toy",
    "mi300x_qwen05b_inference",
    "mi300x_resnet18_no_pool",
    "mi300x_resnet_act_checkpoint_rank0of8",
    "mi300x_stable_diffusion35",
]
HOOK = f"traces/script/script_hooks.py({inspect.getsourcelines(script_hooks.ScriptHooks.module_calls)[1]}): module_calls"


def kept(*rows: tuple[int, str]) -> list[str]:
    """Return the names of the rows that `scripts_calls` keeps.

    A row is a depth and the name of a call or an op ("aten::...").
    """
    above, parents = {-1: NONE}, []
    for row, (depth, _) in enumerate(rows):
        above[depth] = row
        parents.append(above[depth - 1])
    names = [name for _, name in rows]
    stays = scripts_calls(np.array(parents), np.array([not name.startswith("aten::") for name in names]), names)
    return [name for name, stay in zip(names, stays, strict=True) if stay]


def test_threads_started_by_trace_are_removed_from_profiles() -> None:
    """GIVEN a thread of `trace`, a thread of the script and a thread of PyTorch WHEN the profile is filtered THEN only the
    thread of `trace` is removed, with all its calls."""
    begun = [(0, "threading.py(1002): _bootstrap"), (1, "threading.py(1045): _bootstrap_inner"), (2, "threading.py(982): run")]
    of_script = [*begun, (3, "train.py(3): work"), (4, HOOK), (5, "train.py(9): forward"), (6, "aten::add")]
    of_torch = [*begun, (3, "torch/utils/data/_utils/pin_memory.py(9): loop"), (4, HOOK), (5, "aten::pin_memory")]
    left = [name for _, name in (*of_script, *of_torch) if name != HOOK]
    assert kept(*begun, (3, HOOK), (4, "msgpack/__init__.py(30): packb"), *of_script, *of_torch) == left


def test_functions_of_this_tool_and_their_calls_are_removed_from_profiles() -> None:
    assert kept(
        (0, "train.py(3): step"),
        (1, HOOK),
        (2, "<built-in function isinstance>"),
        (2, "threading.py(271): __enter__"),
        (2, "torch/nn/modules/module.py(1782): _call_impl"),
        (3, "<built-in method addmm of type object at 0x7f>"),
        (4, "aten::addmm"),
        (5, HOOK),
        (6, "torch/_ops.py(9): __call__"),
        (2, "torch/utils/data/dataloader.py(700): __next__"),
        (3, "data.py(9): __getitem__"),
        (4, "<built-in function len>"),
    ) == [
        "train.py(3): step",
        "torch/nn/modules/module.py(1782): _call_impl",
        "<built-in method addmm of type object at 0x7f>",
        "aten::addmm",
        "torch/utils/data/dataloader.py(700): __next__",
        "data.py(9): __getitem__",
        "<built-in function len>",
    ]


def test_a_user_file_with_the_name_of_a_trace_file_is_kept() -> None:
    """GIVEN a user's file with the path of a file of `trace`, traces/script/script_hooks.py WHEN its functions begin on other
    lines THEN its functions are kept."""
    mine = "traces/script/script_hooks.py(1): module_calls"
    assert kept((0, mine), (1, "<built-in function len>"), (0, HOOK)) == [mine, "<built-in function len>"]


Spans = list[tuple[int, int, int]]  # each span: the depth, the index of the name, and the duration


@st.composite
def profiles(draw: st.DrawFn) -> Trace:
    """Return nested spans of one thread: calls of functions and of a module, and ops that launch a kernel each."""
    names = ["a.py(1): f", "b.py(2): g", "<built-in function len>", "nn.Module: Net_0", "aten::relu"]
    depths: list[int] = []
    for _ in range(draw(st.integers(1, 25))):
        depths.append(draw(st.integers(0, depths[-1] + 1 if depths else 0)))
    chosen = draw(st.lists(st.integers(0, 4), min_size=len(depths), max_size=len(depths)))
    own_ns = draw(st.lists(st.sampled_from([1, 900, SHORT_NS, 50_000]), min_size=len(depths), max_size=len(depths)))
    strings, now_ns = Strings(), 0
    open_rows: list[int] = []
    parent, start_ns, end_ns = [], list[int](), [0] * len(depths)
    for row, depth in enumerate(depths):
        for done in open_rows[depth:]:
            end_ns[done] = now_ns
        del open_rows[depth:]
        parent.append(open_rows[-1] if open_rows else NONE)
        open_rows.append(row)
        start_ns.append(now_ns)
        now_ns += own_ns[row]
    for done in open_rows:
        end_ns[done] = now_ns
    ops = [row for row, name in enumerate(chosen) if name == 4]
    host = HostSpans.of(
        name=[strings.add(names[name]) for name in chosen],
        kind=[HostKind.OP if name == 4 else HostKind.PYTHON for name in chosen],
        parent=parent,
        start_ns=start_ns,
        duration_ns=np.array(end_ns) - np.array(start_ns),
    )
    kernels = {"name": [strings.add("kernel")] * len(ops), "duration_ns": [7] * len(ops)}
    device = DeviceSpans.of(start_ns=[start_ns[row] for row in ops], launch=ops, **kernels)
    return Trace(strings=strings, threads=[Thread(0, 1)], host=host, device=device if ops else DeviceSpans.empty())


def rows_of(trace: Trace) -> list[tuple[Any, ...]]:
    host = trace.host
    return [
        (trace.strings[name], start, took)
        for name, start, took in zip(host.name.tolist(), host.start_ns.tolist(), host.duration_ns.tolist(), strict=True)
    ]


@given(profiles())
def test_removing_short_functions_keeps_all_ops_and_functions_that_run_ops(profile: Trace) -> None:
    """GIVEN any profile WHEN short functions are removed THEN all ops, modules and functions that run ops are kept, with their
    kernels. Each row belongs to its innermost kept parent.

    For any other function, either all calls are kept or none. The figures of functions do not change.
    """
    lean = without_short_calls(profile)
    before, after = rows_of(profile), rows_of(lean)
    places = [before.index(row) for row in after]  # the start and the name identify a row
    assert places == sorted(places)
    calls: dict[str, list[int]] = {}
    for name, _, took_ns in before:
        calls.setdefault(name, []).append(took_ns)
    left = {name for name, *_ in after}
    for name, took_ns in calls.items():
        assert sum(one[0] == name for one in after) in (0, len(took_ns))
        works = any(
            name == before[outer][0]
            for row, (inner, *_) in enumerate(before)
            if inner == "aten::relu"
            for outer in around(profile, row)
        )
        fleeting = sum(took_ns) < SHORT_NS * len(took_ns) and not works and not name.startswith(("nn.Module", "aten::"))
        assert (name not in left) == fleeting
    for row, place in enumerate(places):
        outer = [before[one] for one in around(profile, place) if before[one][0] in left]
        found = [after[one] for one in around(lean, row)]
        assert found == outer
    launched = [before[row] for row in profile.device.launch.tolist()]
    assert [after[row] for row in lean.device.launch.tolist()] == launched
    figures = {one.name: one for one in function_times(profile)}
    assert all(figures[one.name] == one for one in function_times(lean))
    assert set(lean.strings.texts) - {"kernel"} == left


def around(trace: Trace, row: int) -> list[int]:
    rows, outer = [], int(trace.host.parent[row])
    while outer != NONE:
        rows.append(outer)
        outer = int(trace.host.parent[outer])
    return rows


@pytest.mark.parametrize("name", recordings(WITH_CALLS))
def test_stacks_at_most_double_the_size_of_a_trace_file(shared_traces: Path, tmp_path: Path, name: str) -> None:
    """GIVEN a real profile with stacks WHEN short functions are removed THEN the trace file is at most twice as large as
    without stacks."""
    content = orjson.loads(gzip.decompress((shared_traces / f"{name}.json.gz").read_bytes()))
    save(without_short_calls(read_kineto_bytes(orjson.dumps(content))), tmp_path / "with.msgpack")
    content["traceEvents"] = [event for event in content["traceEvents"] if event.get("cat") != "python_function"]
    save(read_kineto_bytes(orjson.dumps(content)), tmp_path / "without.msgpack")
    assert (tmp_path / "with.msgpack").stat().st_size <= 2 * (tmp_path / "without.msgpack").stat().st_size


def test_removing_short_functions_does_not_change_a_profile_without_stacks() -> None:
    profile = Trace(host=HostSpans.of(kind=[HostKind.OP], name=[0]), strings=Strings(["aten::relu"]), threads=[Thread(0, 1)])
    assert without_short_calls(profile) is profile

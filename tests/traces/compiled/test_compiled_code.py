from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from traces.compiled import compiled_code as counts
from traces.model.run import CompiledCode, EagerRegion


def metric(compile_id: str, **fields: Any) -> SimpleNamespace:
    known = {"is_forward": True, "graph_op_count": 1, "fail_type": None, "fail_reason": None, "recompile_reason": None}
    place = {"co_name": "f", "co_filename": "/a/m.py", "co_firstlineno": 3}
    return SimpleNamespace(**known | place | {"compile_id": compile_id, "duration_us": 7} | fields)


def test_compilations_graph_breaks_and_eager_functions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN graph breaks, a recompilation, a compiled backward pass, and a function that Dynamo cannot trace THEN each of them
    is counted. A cut of DDPOptimizer is not a graph break."""
    metrics, reasons = list[SimpleNamespace](), list[SimpleNamespace]()
    utils = SimpleNamespace(get_compilation_metrics=lambda: metrics, graph_break_reasons=reasons)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    monkeypatch.setattr(counts, "COMPILE_NS", [])
    monkeypatch.setattr(counts, "_eager", [])
    monkeypatch.setattr(counts, "_breaks", Counter())
    assert counts.compiled_code() is None

    def broke(reason: str, line: int) -> None:
        reasons.append(SimpleNamespace(reason=reason, user_stack=[SimpleNamespace(filename="/a/m.py", lineno=line)]))

    with counts.compiling() as eager:
        broke("generic_jump TensorVariable()", 4)
        broke("print() is not traced\n  Explanation: ...", 5)
        broke("DDPOptimizer intentional graph-break", 0)
        metrics.append(metric("0/0"))
    assert eager == []
    with counts.compiling():
        metrics.append(metric("0/1", recompile_reason="0/0: x has another size\nmore"))
    with counts.compiling() as eager:
        broke("print() is not traced", 9)
        place = {"fail_user_frame_filename": "/a/m.py", "fail_user_frame_lineno": 9}
        metrics.append(metric("1/0", fail_type="Unsupported", fail_reason="in a loop\nmore", graph_op_count=None, **place))
    with counts.compiling():
        pass  # Dynamo compiles nothing in this call
    metrics.append(metric("0/0", is_forward=False))
    metrics.append(metric("0/0", is_forward=None, co_name=None))  # Inductor measured kernels here
    # PyTorch 2.14 also adds an entry without a function.
    metrics.append(metric("0/0", graph_op_count=None, co_name=None, co_filename=None, co_firstlineno=None))
    assert eager == [EagerRegion("1/0 f (m.py:3)", "Unsupported: in a loop (m.py:9)")]
    assert len(counts.COMPILE_NS) == 3
    assert counts.compiled_code() == CompiledCode(
        regions=2,
        graph_breaks=2,
        recompiles=1,
        compile_ns=sum(counts.COMPILE_NS) + 21_000,
        eager=tuple(eager),
        break_reasons={"branch on a tensor's value (m.py:4)": 1, "print() is not traced (m.py:5)": 1},
        recompile_reasons={"0/1": "0/0: x has another size"},
        functions=dict.fromkeys(["0/0", "0/1", "1/0"], "f (m.py:3)"),
    )

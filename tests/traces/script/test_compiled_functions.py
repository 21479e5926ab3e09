"""Tests which functions and frames torch.compile traces. Fakes replace the modules of torch._dynamo."""

from __future__ import annotations

import contextlib
import sys
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from traces.names.own_packages import package_folder
from traces.script.compiled_functions import (
    _convert_frames,
    _leave_out_our_frames,
    _list_original_methods,
    _trace_originals,
)
from traces.script.patching import PATCHES, around

OUR_FILE = f"{package_folder('traces')}/model/trace.py"
LIBRARY = Path(typing.__file__).parent
OUR_WRAPPERS = f"{package_folder('traces')}/script/patching.py"


def original() -> None: ...


def of_the_script() -> None: ...


vars(of_the_script)["stands_for"] = original  # functools.wraps copies this attribute to other functions
WRAPPER = around(original, lambda call: call())


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    yield
    PATCHES.undo()


def test_only_wrappers_of_trace_replay_are_replaced_by_the_original_functions() -> None:
    variables = SimpleNamespace(all_tensor_attrs={"ours": WRAPPER, "script's": of_the_script, "C": len, "plain": original})
    _list_original_methods(variables)
    assert variables.all_tensor_attrs == {"ours": original, "script's": of_the_script, "C": len, "plain": original}


def test_dynamo_treats_a_wrapped_tensor_method_as_a_tensor_method(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", around(tolist, lambda call, tensor: call(tensor)))
    rules = SimpleNamespace(SKIP_DIRS=[], _recompile_re=lambda: None, get_tensor_method=frozenset)
    for name in ("lookup_inner", "check", "get_torch_obj_rule_map"):
        setattr(rules, name, dict)
    _leave_out_our_frames(rules)
    assert {tolist, torch.Tensor.tolist} <= rules.get_tensor_method()
    assert of_the_script not in rules.get_tensor_method()


class Method:
    source_fn: object = None

    def __init__(self, fn: object, source_fn: object) -> None:
        self.fn = fn
        if source_fn is not None:
            self.source_fn = source_fn


@pytest.mark.parametrize(
    ("fn", "source", "expected"),
    [
        (WRAPPER, "x.forward", ("x.forward", "stands_for")),
        (WRAPPER, None, None),
        (original, "x.forward", "x.forward"),
        (original, None, None),
    ],
)
def test_dynamos_guards_check_the_original_function_instead_of_the_wrapper(
    fn: object, source: object, expected: object
) -> None:
    class Guarded(Method):
        """A class whose `__init__` is wrapped during the test."""

        def __init__(self, fn: object, source_fn: object) -> None:
            super().__init__(fn, source_fn)

    function, skipped = (type(name, (), {"__init__": lambda self, fn, **kwargs: None}) for name in ("Function", "Skipped"))
    variables = SimpleNamespace(UserFunctionVariable=function, UserMethodVariable=Guarded, SkipFunctionVariable=skipped)
    variables.AttrSource = lambda *names: names
    _trace_originals(variables)
    assert Guarded(fn, source).source_fn == expected


def called_from(files: str, call: Any, *arguments: object) -> Any:
    """Call a function from functions in the given files, which are separated by spaces. The first file contains the caller."""
    for file in files.split():
        names: dict[str, Any] = {"call": call}
        exec(compile("def caller(*arguments): return call(*arguments)", file, "exec"), names)
        call = names["caller"]
    return call(*arguments)


@pytest.mark.parametrize(
    ("caller", "file", "name", "outcome"),
    [
        ("train.py", OUR_FILE, "f", "skipped"),
        ("train.py", OUR_WRAPPERS, "f", "traced"),  # wrappers may call functions of the script
        ("train.py", "generated.py", "f", "skipped"),
        ("train.py", "model.py", "f", "traced"),
        (OUR_FILE, "model.py", "f", "traced"),
        ("train.py", contextlib.__file__, "f", "traced"),
        (OUR_FILE, contextlib.__file__, "f", "skipped in this call"),
        (f"torch/autograd/profiler.py {OUR_FILE}", typing.__file__, "inner", "skipped in this call"),
        ("torch/autograd/profiler.py train.py", typing.__file__, "inner", "traced"),
        (f"{warnings.__file__} {OUR_FILE}", warnings.__file__, "_add_filter", "skipped in this call"),
        (f"{warnings.__file__} train.py", warnings.__file__, "_add_filter", "traced"),
        (OUR_FILE, f"{LIBRARY}/site-packages/model.py", "f", "traced"),
        ("train.py", "model.py", "__instancecheck__", "traced"),
        (OUR_FILE, "model.py", "__instancecheck__", "skipped in this call"),
    ],
)
def test_dynamo_does_not_trace_functions_of_trace_replay(
    caller: str, file: str, name: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CatchErrorsWrapper:
        def __call__(self, frame: object) -> str:
            return "traced"

    def skipped(frame_exec_strategy: object, apply_to_code: bool = True) -> str:
        return "skipped" if apply_to_code else "skipped in this call"

    types = SimpleNamespace(FrameAction=SimpleNamespace(SKIP=0), ConvertFrameReturn=skipped)
    types.FrameExecStrategy = lambda *actions: actions
    monkeypatch.setitem(sys.modules, "torch._dynamo.types", types)
    convert_frame = SimpleNamespace(CatchErrorsWrapper=CatchErrorsWrapper, __file__="convert_frame.py")
    utils = SimpleNamespace(get_compilation_metrics=list, graph_break_reasons=[])
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    _convert_frames(convert_frame, ["generated.py"], lambda _: None)
    frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=file, co_name=name))
    assert called_from(caller, CatchErrorsWrapper(), frame) == outcome

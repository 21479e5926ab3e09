"""Hides our wrappers of PyTorch functions from Dynamo, the tracer of torch.compile.

    see_through_wrappers()      # compiled code then has the same graphs as in a run without this tool
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import walk_stack
from types import FunctionType, MethodDescriptorType, MethodType
from typing import Any

from traces.compiled.compiled_code import compiling
from traces.model.run import EagerRegion
from traces.names.own_packages import IN_SCRIPTS
from traces.script.patching import PATCHES, patch, patch_around, when_imported

_OURS = tuple(f"{folder}/" for folder in IN_SCRIPTS.values())
_WITH_WRAPPERS = (
    "traces/script/patching.py",
    "traces/script/script_hooks.py",
    "tracer/surfaces/",
    "replayer/surfaces/",
    "replayer/torch_shortcuts.py",
)
_WRAPPERS = tuple(f"{IN_SCRIPTS[room]}/{place}" for room, _, place in (at.partition("/") for at in _WITH_WRAPPERS))

_PYTHON = str(Path(contextlib.__file__).parent)  # the standard library
_RANGES = "torch/autograd/profiler.py"  # profiler ranges of the recorder

_COMPILATIONS_KEPT = 1 << 20


def see_through_wrappers(generated: Sequence[str] = (), on_eager: Callable[[EagerRegion], None] = lambda _: None) -> None:
    """Make torch.compile trace PyTorch's original functions instead of our wrappers, and count compilations. Files in
    `generated` are not compiled. `on_eager` is called for each function that torch.compile cannot trace."""
    # By default, PyTorch keeps statistics of the last 64 compilations only.
    when_imported("torch._dynamo.utils", lambda utils: utils.set_compilation_metrics_limit(_COMPILATIONS_KEPT))
    when_imported("torch._dynamo.trace_rules", _leave_out_our_frames)
    when_imported("torch._dynamo.convert_frame", lambda module: _convert_frames(module, generated, on_eager))
    when_imported("torch._dynamo.variables.functions", _trace_originals)
    when_imported("torch._dynamo.variables.user_defined", _find_original_methods)
    when_imported("torch._dynamo.variables.tensor", _list_original_methods)
    when_imported("torch._dynamo.variables.torch", _add_factories)
    when_imported("torch._dynamo.exc", _hide_in_graph_breaks)
    when_imported("torch.fx.experimental.symbolic_shapes", _hide_in_guards)


def _leave_out_our_frames(rules: Any) -> None:
    rules.SKIP_DIRS.extend(_OURS)
    rules._recompile_re()
    PATCHES.on_undo(lambda: _trace_our_frames(rules))

    def tensor_methods(methods: Any) -> Any:
        originals = {method: _original_of(method) for method in vars(torch.Tensor).values() if callable(method)}
        replaced = {method: own for method, own in originals.items() if isinstance(own, MethodDescriptorType)}
        return methods() | replaced.keys() | set(replaced.values())

    def with_originals(rules_by_object: Any) -> Any:
        found = rules_by_object()
        return found | {_original_of(key): rule for key, rule in found.items()}

    torch: Any = importlib.import_module("torch")
    methods_once = functools.cache(functools.partial(tensor_methods, rules.get_tensor_method))
    patch_around(
        rules,
        lookup_inner=lambda lookup, function, *args, **kwargs: lookup(_original_of(function), *args, **kwargs),
        check=lambda check, function, *args, **kwargs: check(_original_of_callable(function), *args, **kwargs),
    )
    rules_once = functools.cache(functools.partial(with_originals, rules.get_torch_obj_rule_map))
    patch(rules, get_tensor_method=methods_once, get_torch_obj_rule_map=rules_once)


def _trace_our_frames(rules: Any) -> None:
    rules.SKIP_DIRS[:] = [folder for folder in rules.SKIP_DIRS if folder not in _OURS]
    rules._recompile_re()


def _trace_originals(variables: Any) -> None:
    # torch.compile must read the default arguments of PyTorch's function instead of those of our wrapper.
    def traced(create: Any, self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        original = _original_of(fn)
        if original is not fn and type(self) is variables.UserFunctionVariable and kwargs.get("source") is not None:
            kwargs["source"] = variables.AttrSource(kwargs["source"], "stands_for")
        create(self, original, *args, **kwargs)

    def traced_method(create: Any, self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        create(self, fn, *args, **kwargs)
        if _original_of(fn) is not fn and getattr(self, "source_fn", None) is not None:
            self.source_fn = variables.AttrSource(self.source_fn, "stands_for")

    patch_around(variables.UserFunctionVariable, __init__=traced)
    patch_around(variables.UserMethodVariable, __init__=traced_method)
    # the message about a function that is not traced names the function's file
    patch_around(
        variables.SkipFunctionVariable,
        __init__=lambda create, self, value, *args, **kwargs: create(self, _original_of(value), *args, **kwargs),
    )


def _find_original_methods(variables: Any) -> None:
    def find(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        found = call(self, *args, **kwargs)
        original = _original_of(found)
        return found if isinstance(original, FunctionType) else original

    kind = variables.UserDefinedObjectVariable
    for name in ("_maybe_get_baseclass_method", "lookup_class_mro_attr", "_getattr_static"):
        if hasattr(kind, name):
            patch_around(kind, **{name: find})


def _list_original_methods(variables: Any) -> None:
    methods = {name: _original_of(method) for name, method in variables.all_tensor_attrs.items()}
    patch(variables, all_tensor_attrs=methods)


def _add_factories(variables: Any) -> None:
    # torch.compile applies the default device to the factories in this list. Our wrappers of factories have to be in it too.
    listed = variables.get_overridable_functions
    factories = importlib.import_module("torch.utils._device")._device_constructors.__wrapped__
    patch(variables, get_overridable_functions=functools.cache(lambda: listed() | factories()))


def _hide_in_graph_breaks(errors: Any) -> None:
    patch_around(errors, filter_stack=lambda keep, stack: keep([f for f in stack if not str(f.filename).startswith(_OURS)]))


def _hide_in_guards(shapes: Any) -> None:
    # the reason of a recompilation names the innermost function that is in none of these files
    files = functools.cache(lambda: {str(file) for folder in _OURS for file in Path(folder).rglob("*.py")})
    patch_around(shapes, uninteresting_files=lambda call: call() | files())


def _original_of(function: Any) -> Any:
    # functools.wraps also copies `stands_for` to wrappers of other packages, such as the `step` of a learning rate scheduler
    is_ours = isinstance(function, FunctionType) and function.__code__.co_filename.startswith(_OURS)
    return getattr(function, "stands_for", function) if is_ours else function


def _original_of_callable(function: Any) -> Any:
    own = function.__func__ if isinstance(function, MethodType) else function
    original = _original_of(own)
    return function if original is own else original


def _convert_frames(convert_frame: Any, generated: Sequence[str], on_eager: Callable[[EagerRegion], None]) -> None:
    """Count compilations. Also make torch.compile skip this tool's own functions, except the wrappers of PyTorch functions."""
    types: Any = importlib.import_module("torch._dynamo.types")
    nowhere = types.FrameExecStrategy(types.FrameAction.SKIP, types.FrameAction.SKIP)
    call = convert_frame.CatchErrorsWrapper.__call__

    def convert(self: Any, frame: Any, *args: Any) -> Any:
        file = frame.f_code.co_filename
        if file in generated or (file.startswith(_OURS) and not file.startswith(_WRAPPERS)):
            return types.ConvertFrameReturn(frame_exec_strategy=nowhere)
        is_helper = _is_of_python(file) or frame.f_code.co_name == "__instancecheck__"
        if is_helper and _caller(convert_frame.__file__).startswith(_OURS):
            return types.ConvertFrameReturn(frame_exec_strategy=nowhere, apply_to_code=False)
        with compiling() as eager:
            converted = call(self, frame, *args)
        for one in eager:
            on_eager(one)
        return converted

    # PyTorch searches the call stack for functions of the file convert_frame.py
    convert.__code__ = convert.__code__.replace(co_filename=convert_frame.__file__)
    patch(convert_frame.CatchErrorsWrapper, __call__=convert)


def _caller(file: str) -> str:
    """Return the first file on the call stack that is neither the given file nor in Python's standard library."""
    files = (frame.f_code.co_filename for frame, _ in walk_stack(sys._getframe(1)))
    return next((name for name in files if name != file and not name.endswith(_RANGES) and not _is_of_python(name)), "")


def _is_of_python(file: str) -> bool:
    return file.startswith(_PYTHON) and "-packages" not in file

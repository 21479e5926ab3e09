"""Replaces functions of PyTorch, to report when training phases begin and end.

    PATCHES.undo()                                  # restores the original functions of torch and Python
    patch(torch.autograd, backward=scope.wrap(torch.autograd.backward))
    patch_around(torch.jit, load=by_host)           # torch.jit.load(*args) becomes by_host(torch's own load, *args)
    patch_everywhere(dist.all_reduce, wrapped)      # also replaces the function in torch modules that imported it by name

    scope = PhaseScope("backward", lambda: recorder)
    with scope:         # recorder.enter_phase("backward")
        with scope:     # nothing, because only the outermost `with` block of a thread counts
            ...
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import get_ident
from types import FunctionType, ModuleType, TracebackType
from typing import Any, Protocol, Self, TypeAlias

_MISSING = object()
# first words of the names of this tool's modules in the script's process (Note [Private module names] in
# traces/bootstrap/_trace_names.py)
OUR_MODULES = ("replayer", "tracer", "traces", "_trace_", "trace_replay", "tui")

# objects of any type
Positional: TypeAlias = tuple[Any, ...]
Keywords: TypeAlias = dict[str, Any]
Argument: TypeAlias = Callable[[Positional, Keywords], Any]  # returns one argument of a call


class Patches:
    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._replaced: list[tuple[Any, Any, bool]] = []  # (original function, replacement, True if torch owns it)

    def set(self, owner: Any, name: str, value: object) -> None:
        before = _own_attribute(owner, name)
        self._undo.append(lambda: _restore(owner, name, before))
        setattr(owner, name, value)
        if isinstance(value, FunctionType) and not isinstance(before, FunctionType):
            _name_after(owner, name, value)
        if inspect.ismodule(owner) and callable(before) and callable(value):
            self._replaced.append((before, value, _is_of_torch(owner)))

    def remove(self, owner: Any, name: str) -> None:
        before = _own_attribute(owner, name)
        self._undo.append(lambda: _restore(owner, name, before))
        delattr(owner, name)

    def on_undo(self, undo: Callable[[], object]) -> None:
        self._undo.append(undo)

    def extend_to_importers(self) -> None:
        for module, name, value in _importers({id(before): value for before, value, of_torch in self._replaced if of_torch}):
            if not _is_of_torch(module):
                self.set(module, name, value)

    def undo(self) -> None:
        undo, self._undo = self._undo, []
        replaced, self._replaced = self._replaced, []
        for revert in reversed(undo):
            revert()
        originals: dict[int, Any] = {}
        for before, value, _ in replaced:  # the same name may have been patched twice
            if getattr(sys.modules.get(getattr(value, "__module__", "")), getattr(value, "__name__", ""), None) is not value:
                originals[id(value)] = originals.get(id(before), before)  # `value` is one of our functions, not one of torch's
        for module, name, original in _importers(originals):
            setattr(module, name, original)


def _name_after(owner: Any, name: str, value: FunctionType) -> None:
    # `pickle` finds a function by the function's module and name. A function that is written in C, such as `torch.where`, may
    # have the name of a different module.
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not value and hasattr(owner, "__name__"):
        value.__module__ = owner.__name__ if inspect.ismodule(owner) else owner.__module__
        value.__qualname__ = name if inspect.ismodule(owner) else f"{owner.__qualname__}.{name}"


def _is_of_torch(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] == "torch"


def _importers(values: dict[int, Any]) -> list[tuple[ModuleType, str, Any]]:
    return [
        (module, name, values[id(value)])
        for module in list(sys.modules.values())
        if inspect.ismodule(module) and not module.__name__.startswith(OUR_MODULES)
        for name, value in list(vars(module).items())
        if id(value) in values
    ]


def _own_attribute(owner: Any, name: str) -> Any:
    own = getattr(owner, "__dict__", None)
    return getattr(owner, name, _MISSING) if own is None else own.get(name, _MISSING)


def _restore(owner: Any, name: str, before: object) -> None:
    if before is not _MISSING:
        setattr(owner, name, before)
    elif name in getattr(owner, "__dict__", {}):
        delattr(owner, name)


PATCHES = Patches()


def patch(owner: object, **names: object) -> None:
    for name, value in names.items():
        if inspect.ismodule(owner) and inspect.isfunction(value):
            _script_as(getattr(owner, name, None), value)
        PATCHES.set(owner, name, value)


def patch_item(mapping: Any, key: Any, value: object) -> None:
    before = mapping.get(key, _MISSING)
    PATCHES.on_undo(lambda: mapping.pop(key, None) if before is _MISSING else mapping.__setitem__(key, before))
    mapping[key] = value


def insert_first(items: list[Any], value: object) -> None:
    items.insert(0, value)
    PATCHES.on_undo(lambda: _remove(items, value))


def _remove(items: list[Any], value: object) -> None:
    items[:] = [item for item in items if item is not value]


def _script_as(original: Any, value: Any) -> None:
    # Register our wrapper in the table in which torch.jit.script looks up built-in functions by their ids.
    table = importlib.import_module("torch.jit._builtins")
    by_flags = importlib.import_module("torch._jit_internal").boolean_dispatched
    builtin = table._find_builtin(original)
    if builtin is not None:
        patch_item(table._get_builtin_table(), id(value), builtin)
    elif inspect.isfunction(original):
        if original in by_flags:
            patch_item(by_flags, value, by_flags[original])
        setattr(value, "__prepare_scriptable__", getattr(original, "__prepare_scriptable__", lambda: original))  # noqa: B010


def stands_for(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        wrapper = wraps(original)(wrapper)
        vars(wrapper)["stands_for"] = getattr(original, "stands_for", original)
        if isinstance(original, FunctionType) and isinstance(wrapper, FunctionType):
            # torch.compile reads the default arguments of a function, so the wrapper needs the defaults of the original.
            wrapper.__defaults__ = wrapper.__defaults__ or original.__defaults__
            wrapper.__kwdefaults__ = wrapper.__kwdefaults__ or original.__kwdefaults__
        return wrapper

    return decorate


def around(original: Callable[..., Any], by: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        return by(original, *args, **kwargs)

    return called


def patch_around(owner: object, **names: Callable[..., Any]) -> None:
    for name, by in names.items():
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        wrapped = around(getattr(owner, name), by)
        patch(owner, **{name: staticmethod(wrapped) if is_static else wrapped})


@contextmanager
def temporarily_set(owner: object, **names: object) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in names}
    for name, value in names.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def patch_everywhere(original: Callable[..., Any], wrapped: Callable[..., Any]) -> None:
    name = original.__name__
    for module in [module for key, module in sys.modules.items() if key.partition(".")[0] == "torch"]:
        if getattr(module, "__dict__", {}).get(name) is original:
            patch(module, **{name: wrapped})


def argument(call: Callable[..., Any], name: str) -> Argument:
    position = list(inspect.signature(call).parameters).index(name)

    def get(args: Positional, kwargs: Keywords) -> Any:
        return args[position] if position < len(args) else kwargs.get(name)

    return get


class OutermostCalls(threading.local):
    """Wraps functions. If a wrapped function calls a wrapped function with the same name, only the outer call is counted.

        module.scatter = calls.wrap("scatter", module.scatter, lambda args, kwargs: scope_of(args))
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        self.names.add(name)
        try:
            yield
        finally:
            self.names.discard(name)

    def wrap(
        self, name: str, call: Callable[..., Any], scope: Callable[[Any, Any], AbstractContextManager[Any] | None]
    ) -> Callable[..., Any]:
        @stands_for(call)
        def outermost(*args: Any, **kwargs: Any) -> Any:
            if name in self.names or (entered := scope(args, kwargs)) is None:
                return call(*args, **kwargs)
            with self.inside(name), entered:
                return call(*args, **kwargs)

        return outermost


class PhaseListener(Protocol):
    def enter_phase(self, name: str) -> None: ...

    def leave_phase(self, name: str, error: BaseException | None = None) -> None:
        """Handle the end of a phase. `error` is the exception that ended the phase, or None."""


class PhaseScope:
    """Reports the start and end of a training phase. Nested `with` blocks of one thread count as one phase."""

    def __init__(self, phase: str, listener: Callable[[], PhaseListener | None]) -> None:
        self.phase = phase
        self._listener = listener
        # nesting depth of the scope in each thread; a dict is faster than a thread-local object
        self._depths: dict[int, int] = {}

    def __enter__(self) -> Self:
        depths, thread = self._depths, get_ident()
        if thread not in depths and (listener := self._listener()) is not None:
            listener.enter_phase(self.phase)
        depths[thread] = depths.get(thread, 0) + 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        depths, thread = self._depths, get_ident()
        depth = depths.pop(thread) - 1
        if depth:
            depths[thread] = depth
        elif (listener := self._listener()) is not None:
            listener.leave_phase(self.phase, error)

    def wrap(
        self,
        call: Callable[..., Any],
        completed: Callable[[Any, tuple[Any, ...]], None] | None = None,
        begins: Callable[[Any, Positional, Keywords], None] | None = None,
    ) -> Callable[..., Any]:
        """Wrap a PyTorch function such as `backward`. Each call of the wrapped function counts as one training phase. `begins`
        is called before the function, and `completed` afterwards, except after an exception."""
        depths, hearing, phase = self._depths, self._listener, self.phase

        @stands_for(call)
        def inside(*args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            if thread in depths or (listener := hearing()) is None:
                return call(*args, **kwargs)
            if begins is not None:
                begins(listener, args, kwargs)
            listener.enter_phase(phase)
            depths[thread] = 1
            try:
                result = call(*args, **kwargs)
            except BaseException as error:
                del depths[thread]
                listener.leave_phase(phase, error)
                raise
            del depths[thread]
            listener.leave_phase(phase)
            if completed is not None:
                completed(listener, args)
            return result

        return inside

    def wrap_callback(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a callback that PyTorch calls during a training phase. The time of the callback is not part of the phase."""

        @stands_for(call)
        def outside(*args: Any, **kwargs: Any) -> Any:
            depths, thread = self._depths, get_ident()
            if thread not in depths or (listener := self._listener()) is None:
                return call(*args, **kwargs)
            listener.leave_phase(self.phase)
            depth = depths.pop(thread)
            try:
                return call(*args, **kwargs)
            finally:
                listener.enter_phase(self.phase)
                depths[thread] = depth

        return outside


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        then(sys.modules[name])
    else:
        insert_first(sys.meta_path, _WhenImported(name, then))


class _WhenImported(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            patch(spec.loader, exec_module=execute_and_call)
        return spec

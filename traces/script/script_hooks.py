"""Wraps functions of PyTorch, to report what a training script does.

    hooks = ScriptHooks(torch, recorder, optimizers)    # `recorder()` returns the listener of this process, or None
    hooks.backward()            # phase "backward"
    hooks.optimizers()          # phases "optimizer" and "zero_grad", and which optimizer has stepped
    hooks.module_calls()        # outermost calls of modules
    iterator.__next__ = hooks.loading(iterator.__next__)    # phase "loader"

Note [Wrapping an optimizer's step]
    PyTorch wraps the `step` of an optimizer class when the first optimizer of the class is created
    (`Optimizer.profile_hook_step`). Our wrapper of `step` is added at the same time. PyTorch's own step hooks are not used,
    because they do not run if a step fails, and because a profiler step cannot end inside them.

Note [Closures]
    `optimizer.step(closure)` calls a function of the script (the closure) that runs the forward and backward passes. The phase
    "optimizer" ends before each call of the closure and begins again after it.

Note [Outermost calls]
    `Module.__call__` is replaced, because a global forward hook would disable PyTorch's fast path for modules without hooks.
    The call of a module inside another module only checks a thread-local flag. If calls of inner modules are recorded, each
    call stores two numbers (0.2 us).

Note [Calls of compiled functions]
    The call of a function that torch.compile compiled counts as the call of a module, because calls of modules inside the
    function are not visible. But the function may also run a backward pass, an optimizer's step or a module outside of compiled
    code. Other hooks report these calls. If the script has an optimizer, the first call of each function is therefore reported
    only after it has returned. If a hook reported something inside this call, neither this call nor later ones are reported. A
    function may be called with gradients for training and without gradients for validation, so the two kinds of calls are
    distinguished. While torch.compile compiles a function, it may call modules that it has created, for example the body of a
    `while_loop`. These calls are not reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from types import CellType
from typing import Any, ClassVar, Literal, Protocol
from weakref import WeakSet

from traces.model.layouts import Shape
from traces.script import patching
from traces.script.step_rule import Optimizers
from traces.script.workload_observer import WorkloadObserver

Call = Callable[..., Any]
# (mark the start or end of a call, the launches so far, number of a known module by its `id()`, number a new module)
ModuleMarks = tuple[Callable[[int], None], Sized, Callable[[int], int | None], Callable[[object], int]]
Wrapper = Callable[[Call], Call]
# the methods of torch.Tensor with which Python code reads a value
SCALAR_READS = ("item", "__bool__", "__float__", "__int__", "__index__", "__complex__", "is_nonzero")


_EMPTY = CellType()  # a closure variable without a value


class CallListener(patching.PhaseListener, Protocol):
    def module_called(self, number: int, grad_enabled: bool) -> None:
        """Handle the call of an outermost module. `number` is the `id()` of the module, or a negative number for a compiled
        function."""

    @property
    def module_marks(self) -> Callable[[object], ModuleMarks | None] | None: ...

    def modules_left(self) -> None: ...

    def module_returned(self) -> None: ...

    def autograd_recorded(self, uses_gradients: bool) -> None:
        """Handle the end of a forward pass, before the loss function or the backward pass."""

    def optimizer_stepped(self, is_first: bool) -> None: ...

    def loader_exhausted(self) -> None: ...

    @property
    def workload(self) -> WorkloadObserver: ...


@dataclass
class _CompiledFunction:
    number: int
    is_seen: bool | None = None  # True if calls inside the function were reported; None before the first call has returned
    records: bool = False  # True if autograd recorded the last call of the function


class ThreadCalls:
    """Stores which functions of PyTorch a thread of the script is calling, and has called."""

    __slots__ = ("built_graph", "count", "inside", "is_loading", "nodes", "quiet")

    def __init__(self) -> None:
        self.inside: ModuleMarks | Literal[True] | None = None  # None if the thread is not inside the call of a module
        self.is_loading = False  # True while the thread loads a batch; transforms of a data set may be modules
        self.quiet = 0  # number of active calls whose reads are not recorded
        # number of autograd nodes after the latest backward pass; None if the thread has called a module since then
        self.nodes: int | None = None
        self.built_graph = False  # True if the latest backward pass built a graph
        self.count = 0  # number of module calls, backward passes and optimizer steps


class ScriptCalls(threading.local):
    """Stores the calls of each thread. Each wrapper reads only the attribute `now`, because reading attributes of thread-local
    objects is slow."""

    within: ClassVar[list[int]] = [0]  # number of calls of nested modules, in all threads

    def __init__(self) -> None:
        self.now = ThreadCalls()

    def __reduce__(self) -> tuple[type, tuple[()]]:  # wrappers can be pickled, see tracer/state.py
        return ScriptCalls, ()


SCRIPT_CALLS = ScriptCalls()  # the calls in a replay; this object is global, because torch's functions are global


class ScriptHooks:
    """Wraps functions of PyTorch. While `listener()` is None, the wrapped functions behave like the original functions."""

    def __init__(
        self, torch: Any, listener: Callable[[], CallListener | None], optimizers: Optimizers, calls: ScriptCalls = SCRIPT_CALLS
    ) -> None:
        self._torch = torch
        self._listener = listener
        self._optimizers = optimizers
        self._calls = calls

    def backward(self) -> None:
        autograd = self._torch.autograd
        scope = patching.PhaseScope("backward", self._listener)
        nodes, calls = autograd._get_sequence_nr, self._calls
        is_compiling = compiling(self._torch)

        def begins(position: int) -> Callable[..., None]:  # `position` of the argument `create_graph`
            def begin(listener: CallListener, args: patching.Positional, kwargs: patching.Keywords) -> None:
                if (of_thread := calls.now).nodes is not None:
                    self.report_forward_pass(listener)
                of_thread.built_graph = bool(args[position] if position < len(args) else kwargs.get("create_graph"))

            return begin

        def passed(listener: CallListener, args: tuple[Any, ...]) -> None:
            if not is_compiling():  # torch.compile also runs backward passes, to trace them
                of_thread = calls.now
                of_thread.nodes = nodes()
                of_thread.count += 1
            if listener.workload.is_open:
                listener.workload.backward_passed()

        patching.patch(
            autograd,
            backward=scope.wrap(autograd.backward, passed, begins(3)),
            grad=scope.wrap(autograd.grad, passed, begins(4)),
        )
        run = scope.wrap(autograd.graph._engine_run_backward, passed, begins(3))
        for module in (autograd.graph, autograd):
            patching.patch(module, _engine_run_backward=run)

    def report_forward_pass(self, listener: CallListener) -> None:
        # see Note [After a backward pass] in phase_rule.py
        of_thread = self._calls.now
        if of_thread.nodes is not None and self._torch.autograd._get_sequence_nr() != of_thread.nodes:
            listener.autograd_recorded(of_thread.built_graph)

    def loading(self, fetch: Call) -> Call:
        """Wrap the `__next__` of a DataLoader's iterator. Each call becomes a phase "loader"."""
        hearing, calls = self._listener, self._calls

        @wraps(fetch)
        def next_batch(iterator: Any) -> Any:
            of_thread = calls.now
            if of_thread.is_loading or (listener := hearing()) is None:
                return fetch(iterator)  # batches of a DataLoader inside a data set are not batches of the script
            of_thread.is_loading = True
            listener.enter_phase("loader")
            try:
                batch = fetch(iterator)
            except BaseException as error:
                listener.leave_phase("loader", error)
                if isinstance(error, StopIteration):
                    listener.loader_exhausted()
                raise
            finally:
                of_thread.is_loading = False
            listener.leave_phase("loader")
            if listener.workload.is_open:
                listener.workload.batch_loaded(bytes_in(self._torch, batch))
            return batch

        return next_batch

    def optimizers(
        self,
        step: Wrapper = lambda call: call,
        zero: Wrapper = lambda call: call,
        whole_step: Callable[[], AbstractContextManager[Any] | None] | None = None,
        closure: Wrapper = lambda call: call,
    ) -> None:
        """Wrap the methods `step` and `zero_grad` of all optimizer classes. PyTorch's own wrapper calls the wrapper `step`. If
        `whole_step` returns a context manager, PyTorch's wrapper runs inside this context manager. `closure` wraps the function
        that the script passes to `step`."""
        # see Note [Wrapping an optimizer's step]
        cls = self._torch.optim.Optimizer
        wrap_step, patch_class = cls.profile_hook_step, cls._patch_step_function
        stepping, zeroing = patching.PhaseScope("optimizer", self._listener), patching.PhaseScope("zero_grad", self._listener)
        known, seen, calls = self._optimizers, WeakSet[type](), self._calls
        running_backward = self._torch._C._current_graph_task_id  # -1 outside backward passes; hooks of parameters run inside

        def stepped(listener: CallListener, args: tuple[Any, ...]) -> None:
            calls.now.count += 1
            is_first = running_backward() == -1 and known.is_first(args[0])
            if is_first and listener.workload.is_open:
                listener.workload.optimizer_stepped(type(args[0]).__name__)
            listener.optimizer_stepped(is_first)

        def with_closure(call: Call) -> Call:
            # see Note [Closures]
            @patching.stands_for(call)
            def stepping_with(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                if args and callable(args[0]):
                    args = (stepping.wrap_callback(closure(args[0])), *args[1:])
                elif kwargs and callable(given := kwargs.get("closure")):
                    kwargs["closure"] = stepping.wrap_callback(closure(given))
                if whole_step is None or (around := whole_step()) is None:
                    return call(optimizer, *args, **kwargs)
                with around:
                    return call(optimizer, *args, **kwargs)

            return stepping_with

        def wrap_step_with_phase(call: Call) -> Call:
            return stepping.wrap(with_closure(wrap_step(step(call))), stepped)

        def hooked(wrap: Wrapper, call: Call) -> Call:
            wrapped: Any = wrap(call)
            wrapped.hooked = True  # torch sets this attribute if the `step` of a class is wrapped
            return wrapped  # type: ignore[no-any-return]

        @wraps(patch_class)
        def patch_class_with_phase(optimizer: Any) -> None:
            own = type(optimizer)
            step_before = own.step
            patch_class(optimizer)
            if own.step is not step_before:
                patching.PATCHES.on_undo(lambda: setattr(own, "step", hooked(wrap_step, step_before)))
            known.add(optimizer)
            if own not in seen and own is not cls and "zero_grad" in vars(own):
                seen.add(own)
                patching.patch(own, zero_grad=zeroing.wrap(vars(own)["zero_grad"]))

        patching.patch(
            cls,
            profile_hook_step=staticmethod(wrap_step_with_phase),
            _patch_step_function=patch_class_with_phase,
            zero_grad=zeroing.wrap(zero(cls.zero_grad)),
        )
        for earlier in _subclasses(cls):  # optimizer classes that the script defined before the hooks were installed
            if getattr(vars(earlier).get("step"), "hooked", False):
                patching.patch(earlier, step=hooked(wrap_step_with_phase, vars(earlier)["step"].__wrapped__))

    def module_calls(self) -> None:
        # see Note [Outermost calls]
        cls = self._torch.nn.Module
        patching.patch(cls, __call__=self.module_call(cls.__call__))

        def compiled(compiles: Call, context: Any, function: Any) -> Any:
            if not context.export:
                functions = _CompiledFunction(-id(function)), _CompiledFunction(-id(function))  # without and with gradients
                context.enter_exit_hooks.append(partial(self._compiled_call, functions))
            return compiles(context, function)

        frame = "torch._dynamo.eval_frame"
        patching.when_imported(frame, lambda module: patching.patch_around(module.OptimizeContext, __call__=compiled))

    def _compiled_call(self, functions: Sequence[_CompiledFunction]) -> Callable[[], None]:
        # see Note [Calls of compiled functions]
        grad_enabled, nodes = self._torch.is_grad_enabled(), self._torch.autograd._get_sequence_nr
        function, of_thread = functions[grad_enabled], self._calls.now
        if of_thread.inside or (function.is_seen and self._optimizers) or (listener := self._listener()) is None:
            return lambda: None

        def report() -> None:
            of_thread.count += 1
            listener.module_called(function.number, grad_enabled)

        is_reported = function.is_seen is False or not self._optimizers
        if is_reported:
            of_thread.inside = True
            if function.records:
                listener.autograd_recorded(True)
            report()
        nodes_before, count_before = nodes(), of_thread.count

        def left() -> None:
            function.records, function.is_seen = nodes() != nodes_before, of_thread.count != count_before
            if is_reported:
                of_thread.inside = None
            elif not function.is_seen:
                report()
            listener.module_returned()

        return left

    def module_call(self, call: Call) -> Call:
        listening, grad_enabled = self._listener, self._torch.is_grad_enabled
        described, autocast = self._described, self._autocast
        running_backward = self._torch._C._current_graph_task_id  # -1 outside backward passes
        calls, within = self._calls, self._calls.within
        tracing, set_tracing = self._torch._C._get_tracing_state, self._torch._C._set_tracing_state
        is_compiling = compiling(self._torch)

        # The argument must be called `self`, because torch.profiler looks for a local variable with this name.
        @patching.stands_for(call)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            of_thread = calls.now
            if inside := of_thread.inside:
                if inside is not True:
                    note, place, number, new = inside
                    note((number(id(self)) or new(self)) + len(place))
                    try:
                        return call(self, *args, **kwargs)
                    finally:
                        note(~len(place))
                within[0] += 1
                return call(self, *args, **kwargs)
            if (listener := listening()) is None or is_compiling():
                return call(self, *args, **kwargs)
            marks = None if (marks_of := listener.module_marks) is None else marks_of(self)
            of_thread.inside = True if marks is None else marks
            of_thread.nodes = None
            of_thread.count += 1
            returned: Callable[[], None] | None = None
            workload = listener.workload
            # torch.jit.trace would add the sizes that are read here to the graph
            traced = tracing() if workload.is_open or workload.on_every_call is not None else None
            try:
                if traced is not None:
                    set_tracing(None)
                if (tell := workload.on_every_call) is not None:
                    returned = tell(self, described([args, kwargs]), autocast(self), grad_enabled())
                listener.module_called(id(self), grad_enabled())
                # Activation checkpointing calls modules again during the backward pass, and these calls do not count.
                if workload.is_open and not of_thread.is_loading and running_backward() == -1:
                    workload.module_called(self, described([args, kwargs]), autocast(self))
                if traced is not None:
                    set_tracing(traced)
                if marks is not None:
                    marks[0]((marks[2](id(self)) or marks[3](self)) + len(marks[1]))
                return call(self, *args, **kwargs)
            finally:
                of_thread.inside = None
                if marks is not None:
                    marks[0](~len(marks[1]))
                    listener.modules_left()
                listener.module_returned()
                if returned is not None:
                    returned()

        return called

    def _autocast(self, module: Any) -> str:
        """Return the dtype of autocast in the module's `forward`. The package accelerate decorates `forward` with
        `torch.autocast`."""
        torch = self._torch
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled() else None
        call = getattr(module.module if hasattr(module, "module") else module, "forward", None)
        while call is not None:
            held = [cell.cell_contents for cell in getattr(call, "__closure__", None) or () if cell != _EMPTY]
            entered = [of for of in held if isinstance(of, torch.autocast) and of.device == "cuda"]
            dtype = next((of.fast_dtype if of._enabled else None for of in entered), dtype)
            call = getattr(call, "__wrapped__", None)
        return "off" if dtype is None else str(dtype)[len("torch.") :]

    def _described(self, arguments: object) -> Iterator[tuple[Shape, str]]:
        for tensor in tensors_in(self._torch, arguments):
            with self._torch._C.DisableTorchFunction():
                shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            if all(type(size) is int for size in shape):
                yield shape, dtype


def compiling(torch: Any) -> Callable[[], Any]:
    """Return a fast version of `TracingContext.try_get`. Its result is None, except while torch.compile compiles code."""
    return partial(getattr, torch._guards._TLS, "tracing_context", None)


def _subclasses(cls: Any) -> Iterator[type]:
    for own in cls.__subclasses__():
        yield own
        yield from _subclasses(own)


def length_of(collection: Any) -> int | None:
    """Return the length of an object of the script, or None if it has no length. The script's `__len__` may raise any error."""
    try:
        return len(collection)
    except Exception:
        return None


def bytes_in(torch: Any, batch: Any) -> int | None:
    """Return the size of the tensors in a batch, or None if the batch contains no tensors."""
    tensors = list(tensors_in(torch, batch))
    with torch._C.DisableTorchFunction():
        return sum(int(tensor.nbytes) for tensor in tensors) if tensors else None


def tensors_in(torch: Any, batch: Any, around: tuple[int, ...] = ()) -> Iterator[Any]:
    """Yield the tensors in a batch. Sparse tensors and nested tensors are skipped. `around` contains the ids of all collections
    that contain `batch`. If a collection contains itself, the function does not visit the collection again."""
    if isinstance(batch, torch.Tensor):
        with torch._C.DisableTorchFunction():  # a `__torch_function__` of the script must not see these calls
            is_dense = batch.layout is torch.strided and not batch.is_nested
        if is_dense:
            yield batch
    elif id(batch) not in around:
        around = *around, id(batch)
        for item in _items_of(torch, batch):
            if type(item) not in _WITHOUT_TENSORS:
                yield from tensors_in(torch, item, around)


_WITHOUT_TENSORS = {int, float, bool, str, bytes, type(None)}  # a batch may contain many objects of these types


def _items_of(torch: Any, batch: Any) -> list[Any]:
    """Return the objects in a collection, or the tensors among an object's attributes. Methods that the script overrides are
    not called, because a script's methods may load files or raise errors."""
    if isinstance(batch, dict):
        return list(dict.values(batch))
    if isinstance(batch, list):
        return list.copy(batch)
    if isinstance(batch, tuple):
        return list(tuple.__iter__(batch))
    try:
        attributes = object.__getattribute__(batch, "__dict__")
    except AttributeError:
        return []
    # `UserDict` and `TensorDict` store their items in a dict
    wanted = (torch.Tensor, dict) if isinstance(batch, Mapping) else torch.Tensor
    return [item for item in attributes.values() if isinstance(item, wanted)]

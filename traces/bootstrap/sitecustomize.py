"""Starts the recorder or the replayer in a Python process when the script imports torch.

    TRACE_SESSION=/tmp/x PYTHONPATH=<this folder> python train.py
    # train.py: import torch   ->   replayer.child.start(session), then train.py goes on

Python imports the module `sitecustomize` before it runs a script, even in subprocesses such as torchrun's workers. The user's
own module `sitecustomize` still runs.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import os
import sys

# The module `typing` is not imported, because a script may have a module of this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_PREFIX = "_trace_"  # prefix of the names of this tool's modules


class AfterImport:
    def __init__(self, trigger: str, then: Callable[[], None]) -> None:
        self.trigger = trigger
        self.then = then

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.trigger:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._call_after(spec.loader)
        return spec

    def _call_after(self, loader: Any) -> None:
        # Scripts may read `torch.__loader__`, so torch keeps its loader, and only the loader's method `exec_module` is
        # replaced.
        exec_module = loader.exec_module

        def exec_and_call(module: ModuleType) -> None:
            del loader.exec_module
            exec_module(module)
            if self in sys.meta_path:  # a reload of torch must not start the recorder or replayer again
                sys.meta_path.remove(self)
                self.then()

        loader.exec_module = exec_and_call


class Session:
    """Stores the state of the recorder or the replayer in one process. The environment variable TRACE_SESSION contains the path
    of the session folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._names: Any = importlib.import_module("_trace_names")
        self._tracebacks: Any = importlib.import_module("_trace_tracebacks")
        self.shared: list[Callable[[], None]] = []
        with open(os.path.join(folder, "trigger"), encoding="utf-8") as file:
            self.trigger = file.read()

    def note(self, word: str) -> None:
        """Send a message to the `trace` command, through a file in the session folder."""
        with open(os.path.join(self.folder, "handshake", str(os.getpid())), "a", encoding="utf-8") as file:
            file.write(word + "\n")

    def start(self) -> None:
        self.note("trigger")
        # This exception hook shortens tracebacks. The replayer installs its exception hook later, so the replayer's hook gets
        # the complete traceback.
        self._tracebacks.install(_PREFIX)
        atexit.register(self._note_traceback)
        for start in self.shared:
            start()
        if not self.shared:
            self._call_packages(lambda child, session: child.start(session))
        self.note("started")

    def _note_traceback(self) -> None:
        is_printed = hasattr(sys, "last_value")  # Python sets this attribute before it prints an uncaught exception
        if is_printed and os.path.isdir(self.folder):  # the folder no longer exists if the `trace` command has ended
            self.note("traceback")

    def share(self) -> None:
        self._call_packages(lambda child, session: self.shared.append(child.share(session)))

    def _call_packages(self, call: Callable[[ModuleType, dict[str, Any]], None]) -> None:
        import json

        with open(os.path.join(self.folder, "session.json"), encoding="utf-8") as file:
            session = json.load(file)
        with self._names.OurNames(session["path"], {"traces", *session["options_of_package"]}, _PREFIX, session["libraries"]):
            try:
                for package, options in session["options_of_package"].items():
                    call(importlib.import_module(package + ".child"), options)
            except Exception as error:
                if not is_one_line_error(error) or os.environ.get("TRACE_DEBUG") == "1":
                    raise
                print(f"trace: {error}", file=sys.stderr)
                raise SystemExit(2) from None


def is_one_line_error(error: Exception) -> bool:
    model = sys.modules.get("traces.model.trace")
    return model is not None and isinstance(error, model.TraceError)


def join_session(folder: str) -> Session | None:
    try:
        session = Session(folder)
        session.note("boot")
    except FileNotFoundError:
        return None
    return session


def await_trigger(session: Session) -> None:
    if session.trigger in sys.modules:
        session.start()
    else:
        sys.meta_path.insert(0, AfterImport(session.trigger, session.start))


def become_ranks(session: Session, by_fork: Any, count: int) -> None:
    """Fork this process into ranks. Exceptions are printed here, because Python hides exceptions in `sitecustomize`."""
    try:
        with by_fork.path_of(sys.argv[0]):
            if by_fork.is_there(session.trigger):
                session.share()
        by_fork.mark_rank(by_fork.fork_ranks(count))
        session.note("boot")
        await_trigger(session)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


def give_way() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    del sys.modules["sitecustomize"]
    importlib.import_module("sitecustomize")


def leave_last(is_fork: bool) -> None:
    """If the script has failed, end the process at once, without running destructors."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, Exception) and not sys.flags.inspect and not hasattr(sys, "ps1"):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                return
        os._exit(1)
    if is_fork:
        sys.modules["_trace_ranks"].leave_shared_modules()
        if sys.stderr is not None and not sys.stderr.closed:
            sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def begin() -> None:
    ranks = os.environ.pop("TRACE_RANKS", "")
    if "TRACE_SESSION" in os.environ:
        atexit.register(leave_last, bool(ranks))
    session = join_session(os.environ["TRACE_SESSION"]) if "TRACE_SESSION" in os.environ else None
    if session is None or not ranks:
        if session is not None:
            await_trigger(session)
        give_way()
        return
    by_fork = importlib.import_module("_trace_ranks")
    try:
        give_way()
    finally:  # if the user's own sitecustomize raises an error, every rank must raise it
        become_ranks(session, by_fork, int(ranks))


begin()

"""What runs first in every interpreter of a traced run: it waits for torch and then starts the rooms that were asked for.

`traces.script.launch` puts this folder in front on PYTHONPATH and names a session folder in the environment; Python itself
imports a module called `sitecustomize` before anything of the user's runs. So a script, its subprocesses, its spawned
workers and torchrun's children are all reached, and argv, `__main__`, `sys.path[0]` and tracebacks are the script's
own, for it is run by `python script.py` and by nothing else.

    TRACE_SESSION=/tmp/x PYTHONPATH=<this folder> python train.py
    # train.py: import torch   ->   replayer.child.start(session), then train.py goes on

Told TRACE_RANKS=8, it makes eight ranks of its process first: see _trace_ranks.py.

What the script can see of it: TRACE_SESSION and this folder on PYTHONPATH in `os.environ` (its descendants need both),
and in `sys.modules` our modules under private names (_trace_names.py). `sys.path` is as without us, and a
`sitecustomize` of the user's own has run and is the one that `import sitecustomize` gives.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import os
import sys

# Nothing more than that is imported before torch is: a script may have a `json.py` of its own beside it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class AfterImport:
    """A meta path entry that finds nothing itself: the others find `trigger`, and `then` is called when that has
    run."""

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
        # On the loader itself and only until it ran: torch.__loader__ and torch.__spec__ then look as ever.
        exec_module = loader.exec_module

        def exec_and_call(module: ModuleType) -> None:
            del loader.exec_module
            exec_module(module)
            if self in sys.meta_path:  # a reload of the trigger must not start a second time
                sys.meta_path.remove(self)
                self.then()

        loader.exec_module = exec_and_call


class Session:
    """One run of `traces.script.launch.run_child`, as one of its processes sees it: the folder that TRACE_SESSION names."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._names: Any = importlib.import_module("_trace_names")  # while this folder is on sys.path
        self.shared: list[Callable[[], None]] = []  # what starts each room, once `share` has prepared them
        with open(os.path.join(folder, "trigger"), encoding="utf-8") as file:
            self.trigger = file.read()

    def tell(self, word: str) -> None:
        """Leave word for the parent: one file per process."""
        with open(os.path.join(self.folder, "handshake", str(os.getpid())), "a", encoding="utf-8") as file:
            file.write(word + "\n")

    def start(self) -> None:
        """Start the rooms in this process."""
        self.tell("trigger")
        for start in self.shared:
            start()
        if not self.shared:
            self._with_rooms(lambda child, session: child.start(session))
        self.tell("started")

    def share(self) -> None:
        """Let the rooms do what all forks of this process can share. Each of them is to call `start`."""
        self._with_rooms(lambda child, session: self.shared.append(child.share(session)))

    def _with_rooms(self, call: Callable[[ModuleType, dict[str, Any]], None]) -> None:
        import json

        with open(os.path.join(self.folder, "session.json"), encoding="utf-8") as file:
            session = json.load(file)
        with self._names.OurNames(session["path"], {"traces", *session["rooms"]}, "_trace_", session["libraries"]):
            try:
                for room, told in session["rooms"].items():
                    call(importlib.import_module(room + ".child"), told)
            except Exception as error:
                if not is_told_in_a_line(error) or os.environ.get("TRACE_DEBUG") == "1":
                    raise
                print(f"trace: {error}", file=sys.stderr)
                raise SystemExit(2) from None


def is_told_in_a_line(error: Exception) -> bool:
    model = sys.modules.get("traces.model.trace")
    return model is not None and isinstance(error, model.TraceError)


def join_session(folder: str) -> Session | None:
    try:
        session = Session(folder)
        session.tell("boot")
    except FileNotFoundError:
        return None  # a process that outlived the run it belonged to: nobody waits for its word
    return session


def await_trigger(session: Session) -> None:
    if session.trigger in sys.modules:  # a .pth file has already imported it
        session.start()
    else:
        sys.meta_path.insert(0, AfterImport(session.trigger, session.start))


def become_ranks(session: Session, by_fork: Any, count: int) -> None:
    """Returns in each of the ranks. What goes wrong is told here, for Python would go on without a sitecustomize that fails."""
    try:
        with by_fork.path_of(sys.argv[0]):
            if by_fork.is_there(session.trigger):
                session.share()
        by_fork.mark_rank(by_fork.fork_ranks(count))
        session.tell("boot")
        await_trigger(session)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


def give_way() -> None:
    """Take this folder off `sys.path` and import again: the user's own sitecustomize, or natively's error."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    del sys.modules["sitecustomize"]
    importlib.import_module("sitecustomize")


def leave_last(is_fork: bool) -> None:
    """Registered before all others, so called after them: a script that has failed ends here, its own error said last.

    What Python would still do is to tear modules down, while the error's frames hold what is in them: libraries made with
    nanobind (triton's) then print a page about leaks over the error. In a forked rank they do so in any case, for what there
    was before the fork stays; so nobody hears what is said from here on.
    """
    error = getattr(sys, "last_value", None)
    if isinstance(error, Exception) and not sys.flags.inspect and not hasattr(sys, "ps1"):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):  # none, closed, or a pipe that nobody reads any more
                return
        os._exit(1)
    if is_fork and sys.stderr is not None and not sys.stderr.closed:
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def begin() -> None:
    ranks = os.environ.pop("TRACE_RANKS", "")  # told to this process alone, not to those that it starts
    if "TRACE_SESSION" in os.environ:
        atexit.register(leave_last, bool(ranks))
    session = join_session(os.environ["TRACE_SESSION"]) if "TRACE_SESSION" in os.environ else None
    if session is None or not ranks:
        if session is not None:
            await_trigger(session)
        give_way()
        return
    by_fork = importlib.import_module("_trace_ranks")  # which lies beside this file
    try:
        give_way()
    finally:  # whatever is wrong with the user's own sitecustomize, every rank meets it
        become_ranks(session, by_fork, int(ranks))


begin()

"""Provides the `trace` command, and the function `gpu`, which starts a virtual GPU in the current process.

    with trace_replay.gpu("v100", values="compute") as gpu: ...     # virtual_gpu.py
    from trace_replay import traces     # our `traces`, even if another module has this name

In the wheel, the packages traces, tracer, replayer and tui are inside trace_replay. A `.pth` file adds `traces` to `sys.path`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    import traces as traces
    from trace_replay.virtual_gpu import InProcessGpu as InProcessGpu
    from trace_replay.virtual_gpu import ReplayReport as ReplayReport
    from trace_replay.virtual_gpu import gpu as gpu
    from trace_replay.virtual_gpu import start as start

_HERE = os.path.dirname(os.path.abspath(__file__))
_IS_INSTALLED = os.path.isdir(os.path.join(_HERE, "public"))
PATH = [os.path.join(_HERE, "public"), _HERE] if _IS_INSTALLED else [os.path.dirname(_HERE)]  # folders of our packages


def main() -> None:
    """Run the `trace` command.

    A user's file may have the name of a standard module, so the standard modules come first in `sys.path`.
    """
    if (reason := unsupported(sys.platform)) is not None:
        sys.exit(f"trace: {reason}")
    users = _users_path()
    sys.path[:] = [*PATH, *sorted(sys.path, key=lambda entry: os.path.abspath(entry) in users)]
    try:
        from tui.cli import main

        main()
    except KeyboardInterrupt:  # Ctrl-C during an import
        sys.exit(128 + 2)


def unsupported(platform: str) -> str | None:
    """Return None for a supported platform, or an error message."""
    if platform == "win32":
        return "trace-replay does not run on Windows, because it needs fork and POSIX signals; run it in WSL"
    return None


def _users_path() -> set[str]:
    given = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    users = {os.path.abspath(entry) for entry in given.split(os.pathsep)} if given else set()
    return users if sys.flags.safe_path else users | {os.path.abspath(sys.path[0])}


_IN_PROCESS = frozenset({"InProcessGpu", "ReplayReport", "gpu", "start"})
__all__ = ["InProcessGpu", "ReplayReport", "gpu", "main", "start", "traces"]


def __getattr__(name: str) -> Any:
    if name in _IN_PROCESS:
        import importlib

        return getattr(importlib.import_module("trace_replay.virtual_gpu"), name)
    if name != "traces":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = globals()[name] = library()
    return module


def load_ipython_extension(shell: Any) -> None:
    """Register the commands when IPython runs `%load_ext trace_replay`."""
    from trace_replay.notebook import load

    load(shell)


def library() -> ModuleType:
    """Return trace-replay's module `traces`, even if the script has another module of this name."""
    import importlib
    from importlib.machinery import PathFinder

    if "trace_replay.traces" in sys.modules:
        return sys.modules["trace_replay.traces"]
    imported = sys.modules.get("traces")
    spec = PathFinder.find_spec("traces") if imported is None else imported.__spec__
    if spec is not None and spec.origin == os.path.join(PATH[0], "traces", "__init__.py"):
        return importlib.import_module("traces")
    with trace_names().OurNames(PATH, {"traces"}, "trace_replay."):
        library = importlib.import_module("traces")
        for public in library.__all__:  # import everything while the name `traces` means our module
            getattr(library, public)
    return library


def trace_names() -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("_trace_names", os.path.join(PATH[0], "traces", "bootstrap", "_trace_names.py"))
    assert spec is not None and spec.loader is not None
    names = module_from_spec(spec)
    spec.loader.exec_module(names)
    return names

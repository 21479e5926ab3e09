"""What the installed tool is called: the `trace` command, and the way to our library where its name is taken.

    from trace_replay import traces     # as `import traces`, whatever else of that name is installed or lies beside

The wheel has all our packages inside this one, so that it shares no file with another distribution (pyproject.toml has the
map); in a checkout they lie beside it. Of them only `traces` is on everyone's `sys.path`, and last: a .pth file says so.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    import traces as traces

_HERE = os.path.dirname(os.path.abspath(__file__))
_IS_INSTALLED = os.path.isdir(os.path.join(_HERE, "public"))
PATH = [os.path.join(_HERE, "public"), _HERE] if _IS_INSTALLED else [os.path.dirname(_HERE)]  # where our packages lie


def main() -> None:
    """The `trace` command.

    What it imports are our packages first and the user's modules last: a `tui.py` or a `json.py` in a folder on PYTHONPATH is
    the script's, which runs in a process of its own with the path that it would have without us.
    """
    users = _users_path()
    sys.path[:] = [*PATH, *sorted(sys.path, key=lambda entry: os.path.abspath(entry) in users)]
    from tui.cli import main

    main()


def _users_path() -> set[str]:
    """The entries of sys.path that PYTHONPATH names, and the one of the script or, under `python -m`, of the current folder."""
    given = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    users = {os.path.abspath(entry) for entry in given.split(os.pathsep)} if given else set()
    return users if sys.flags.safe_path else users | {os.path.abspath(sys.path[0])}


def __getattr__(name: str) -> ModuleType:
    if name != "traces":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = globals()[name] = _library()
    return module


def _library() -> ModuleType:
    """Our `traces`: the very one that `import traces` gives, unless that is somebody else's; then under a name within ours."""
    import importlib
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.join(PATH[0], "traces")
    imported = sys.modules.get("traces")
    spec = PathFinder.find_spec("traces") if imported is None else imported.__spec__
    if spec is not None and spec.origin == os.path.join(folder, "__init__.py"):
        return importlib.import_module("traces")
    spec = spec_from_file_location("_trace_names", os.path.join(folder, "bootstrap", "_trace_names.py"))
    assert spec is not None and spec.loader is not None
    names = module_from_spec(spec)
    spec.loader.exec_module(names)
    with names.OurNames(PATH, {"traces"}, "trace_replay."):
        library = importlib.import_module("traces")
        for public in library.__all__:  # each imports what it needs, which later on would be looked for by the taken name
            getattr(library, public)
    return library

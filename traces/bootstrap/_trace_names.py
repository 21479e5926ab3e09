"""Imports this tool's packages under private names, because a script may have modules with the same names.

    with OurNames(["/lib/trace_replay"], {"traces", "replayer"}, "_trace_", libraries={"msgpack": "/lib"}):
        child = importlib.import_module("replayer.child")
    child.__name__      # "_trace_replayer.child"
    import replayer     # the user's

Note [Private module names]
    A script may have its own `traces.py` or package `tracer`. Inside the `with` block, Python imports this tool's packages from
    the given folders, and hides other modules of the same name. Afterwards, this tool's packages get private names
    (`replayer.gpu` -> `_trace_replayer.gpu`), so their later imports must be relative. Libraries of this tool, such as msgpack,
    are handled in the same way. If the script has no module with the name of a library, the library is loaded only once.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

# The module `typing` is not imported, because a script may have a module of this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class OurNames:
    def __init__(
        self, path: Sequence[str], packages: Collection[str], prefix: str, libraries: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        self.packages = packages
        self.prefix = prefix
        self.libraries = libraries or {}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self.homes[name]) if name in self.homes else None

    def __enter__(self) -> None:
        hidden = {name: [home] for name, home in self.libraries.items() if _is_hidden(name, home)}
        self.homes = {**dict.fromkeys(self.packages, self.path), **hidden}
        self.theirs = {name: sys.modules.pop(name) for name in _modules_of(self.homes)}
        for private in [name for name in sys.modules if name.startswith(self.prefix)]:  # modules from an earlier `with` block
            name = private.removeprefix(self.prefix)
            if name.partition(".")[0] in self.packages:
                sys.modules[name] = sys.modules[private]
        sys.meta_path.insert(0, self)

    def __exit__(self, *exc: object) -> None:
        sys.meta_path.remove(self)
        for name in _modules_of(self.homes):
            if name.partition(".")[0] in self.packages:
                _make_private(name, self.prefix)
            else:
                del sys.modules[name]
        sys.modules.update(self.theirs)


def _is_hidden(library: str, home: str) -> bool:
    ours = PathFinder.find_spec(library, [home])
    module = sys.modules.get(library)
    found = PathFinder.find_spec(library) if module is None else module.__spec__
    return ours is not None and (found is None or _file(found) != _file(ours))


def _file(spec: ModuleSpec) -> str:
    return os.path.realpath(spec.origin or "")


def _modules_of(packages: Collection[str]) -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in packages]


def _make_private(name: str, prefix: str) -> None:
    # see Note [Private module names]
    module = sys.modules.pop(name)
    private = prefix + name
    sys.modules[private] = module
    for thing in vars(module).values():
        # pickle finds classes by `__module__`.
        if isinstance(thing, (type, type(_make_private))) and thing.__module__ == name:
            thing.__module__ = private
    module.__name__ = private
    if module.__spec__ is not None:
        module.__spec__.name = private
        module.__package__ = module.__spec__.parent

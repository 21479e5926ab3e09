"""Finds the folders of this tool's own packages, in a checkout and in an installation.

    package_folder("replayer")      # Path("/site-packages/trace_replay/replayer"), or Path("/checkout/replayer")

In an installed wheel, the package `traces` is in the folder trace_replay/public, and the other packages are in trace_replay. A
Git checkout of trace-replay contains all packages in one folder.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parents[2]  # contains `traces`


def package_folder(package: str, folder: Path = _FOLDER) -> Path:
    """Return the folder of one of this tool's packages, such as "replayer". `folder` is the folder that contains `traces`."""
    return next((found for found in (folder / package, folder.parent / package) if found.is_dir()), folder / package)


# The folders of the packages that run in a script's process
IN_SCRIPTS = {package: package_folder(package) for package in ("traces", "tracer", "replayer")}

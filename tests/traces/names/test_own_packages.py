"""Tests that the folders of this tool's packages are found in a checkout and in an installation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from traces.names.own_packages import package_folder

ROOT = Path(__file__).parents[3]
PACKAGES = ("traces", "tracer", "replayer")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return the parent folder of `traces`, with the folder structure of an installed wheel."""
    public = tmp_path / "trace_replay" / "public"
    public.mkdir(parents=True)
    (public / "traces").symlink_to(ROOT / "traces")
    for package in PACKAGES[1:]:
        (public.parent / package).symlink_to(ROOT / package)
    return public


def test_every_package_is_found_in_a_checkout_and_in_an_installation(installed: Path) -> None:
    assert [package_folder(name, ROOT) for name in PACKAGES] == [ROOT / name for name in PACKAGES]
    assert package_folder("traces", installed) == installed / "traces"
    assert package_folder("replayer", installed) == installed.parent / "replayer"


def test_the_installed_package_recognizes_its_own_files(installed: Path) -> None:
    """GIVEN the folders of an installed wheel WHEN Dynamo or a profile contains a file of the tool THEN the file is
    recognized."""
    program = """
import inspect
from pathlib import Path
import numpy as np
from traces.kineto.spans.python_calls import scripts_calls
from traces.script.compiled_functions import _OURS, _WRAPPERS
assert all(Path(folder).is_dir() for folder in _OURS) and all(Path(place).exists() for place in _WRAPPERS)
public = next(Path(folder).parent for folder in _OURS if Path(folder).name == "traces")
for package, prefixes in {
    "traces": ("", "trace_replay/public/", f"{public}/"),
    "replayer": ("trace_replay/", f"{public.parent}/"),
}.items():
    file = {"traces": "traces/script/launch.py", "replayer": "replayer/child.py"}[package]
    lines = (public / file if package == "traces" else public.parent / file).read_text().splitlines()
    line, text = next((number, text) for number, text in enumerate(lines, 1) if text.startswith("def "))
    name = text.removeprefix("def ").partition("(")[0]
    for prefix in prefixes:
        kept = scripts_calls(np.array([-1]), np.array([True]), [f"{prefix}{file}({line}): {name}"])
        assert not kept[0], prefix + file
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=installed, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

"""Prints the output of every command that the README shows. The README shows excerpts of this output.

    python benchmarks/readme.py

The commands run in a temporary folder with a copy of examples/, 512 images, and the script, the budgets and the reference
recording of docs/guides/ci.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SHOWN = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^```\w+\n# file: (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SETUP = (
    "python examples/image_folder.py images --count 512",
    "trace replay -q --gpu v100 --estimate --clock recorded -o main.msgpack train.py",
)


def commands(page: str) -> list[str]:
    """Return the commands in a page's ```console blocks, which are the lines that begin with "$ "."""
    return [line[2:] for block in _SHOWN.findall(page) for line in block.splitlines() if line.startswith("$ ")]


def main() -> None:
    guide, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/guides/ci.md", "README.md"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder, "examples"), ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in _FILE.findall(guide):
            Path(folder, name).write_text(text, encoding="utf-8")
        for place, command in enumerate([*SETUP, *commands(readme)]):
            done = subprocess.run(
                command, shell=True, cwd=folder, env={**os.environ, "PATH": path, "COLUMNS": "96"}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
            if place >= len(SETUP) or done.returncode:
                print(f"$ {command}\n{done.stdout}")
            if done.returncode:
                sys.exit(f"exit code {done.returncode}")


if __name__ == "__main__":
    main()

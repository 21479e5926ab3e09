"""Runs the commands in the guides of docs/guides, and inserts their current output into the guides.

    python docs/guides.py                 # runs docs/guides/*.md and updates their output
    python docs/guides.py docs/guides/ci.md

In a ```console block, a line that begins with "$ " is a command, and the lines below are the command's output. All commands of
a guide run in the same temporary folder, which contains a copy of examples/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GUIDES = Path(__file__).resolve().parent / "guides"
EXAMPLES = GUIDES.parents[1] / "examples"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"\A# file: (\S+)\n")
_EXIT = re.compile(r" {2,}# exit code (\d+)$")
_LIMIT_S = 900


@dataclass(frozen=True)
class Ran:
    line: str
    output: str
    exit_code: int

    @property
    def expected_exit_code(self) -> int:
        found = _EXIT.search(self.line)
        return int(found[1]) if found else 0


def blocks(text: str) -> Iterator[tuple[str, str]]:
    for block in _BLOCK.finditer(text):
        yield block[1], block[2]


def commands(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def run(text: str, folder: Path) -> Iterator[Ran]:
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "COLUMNS": "96", "TRACE_LIBRARY": str(folder / "library")}
    for language, block in blocks(text):
        shown = _FILE.match(block)
        if shown:
            (folder / shown[1]).write_text(block[shown.end() :], encoding="utf-8")
        for line in commands(block) if language == "console" else []:
            done = subprocess.run(
                ["bash", "-c", _EXIT.sub("", line)], cwd=folder, env=environment, timeout=_LIMIT_S,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            yield Ran(line, done.stdout, done.returncode)


def with_output(text: str, ran: list[Ran]) -> str:
    outputs = iter(ran)

    def renewed(block: re.Match[str]) -> str:
        if block[1] != "console":
            return block[0]
        lines: list[str] = []
        for part in re.split(r"^(?=\$ )", block[2], flags=re.MULTILINE):
            if part.startswith("$ "):
                old, new = part.splitlines()[1:], next(outputs).output.rstrip().splitlines()
                kept = old.index("...") if "..." in old else None
                lines += [part.splitlines()[0], *(new if kept is None else [*new[:kept], "..."])]
        return "```console\n" + "\n".join(lines) + "\n```"

    return _BLOCK.sub(renewed, text)


def main() -> None:
    for guide in [Path(name) for name in sys.argv[1:]] or sorted(GUIDES.glob("*.md")):
        text = guide.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            ran = []
            for one in run(text, Path(folder)):
                print(f"$ {one.line}\n{one.output}", file=sys.stderr)
                if one.exit_code != one.expected_exit_code:
                    sys.exit(f"{guide}: exit code {one.exit_code} from: {one.line}")
                ran.append(one)
        guide.write_text(with_output(text, ran), encoding="utf-8")


if __name__ == "__main__":
    main()

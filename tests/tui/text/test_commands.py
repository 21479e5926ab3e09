"""Tests the whole output and the exit code of commands on handmade traces. The golden files are in tests/tui/golden/."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.traces.handmade import Call, calls, data_parallel, phase_grained, replay_of, training
from tests.traces.library.test_library_cells import GPU, a_cell
from tests.tui.goldens import assert_golden
from tests.tui.own_library import use_empty_library
from traces.format.trace_file import save
from traces.library.cells import write_cells
from tui.cli import run

ROOT = Path(__file__).resolve().parents[3]
_BUDGETS = """
[budget]
step_time = "101 us"
step_time_change = "5 %"
compute_time = "1 ms"
gpu_busy = "50 us"
gpu_busy_change = "40 %"
memory_peak = "3 MiB"
missing_ops = 0
matched = "99 %"
same_program = true
"""

SESSIONS = {
    "info": """
        info a.msgpack
        info r.msgpack
        info dp.msgpack --json
        info phases.msgpack
        info a.msgpack --json
    """,
    "diff": """
        diff a.msgpack r.msgpack
        diff a.msgpack r.msgpack --details
        diff a.msgpack b.msgpack --json
        diff a.msgpack b.msgpack --by function
        diff a.msgpack phases.msgpack
        diff a.msgpack b.msgpack --tolerance 50%
        diff a.msgpack other.msgpack
        diff a.msgpack other.msgpack --markdown
    """,
    "explain": """
        explain a.msgpack r.msgpack
        explain a.msgpack b.msgpack
        explain a.msgpack other.msgpack --json
    """,
    "predict": """
        predict a.msgpack --on-gpu T4
        predict a.msgpack --batch 64
        predict a.msgpack --gpus 4
        predict a.msgpack --nproc 4
        predict a.msgpack --nproc 2 --parallel fsdp
        predict a.msgpack --sweep gpus,batch --price 2
        predict a.msgpack --on-gpu A100 --price 2 --host-speed 2
        predict a.msgpack --on-gpu T4 --json
        predict a.msgpack --length 8=16
        predict phases.msgpack --on-gpu T4
        predict a.msgpack --nproc 4 --link-gbps 1
    """,
    "gate": """
        gate init a.msgpack -o made.toml
        diff a.msgpack r.msgpack --gate made.toml
        diff a.msgpack b.msgpack --gate budgets.toml
        diff a.msgpack r.msgpack --gate budgets.toml --markdown --junit x.xml
    """,
    "library": """
        library check one.cells none.cells
        library add one.cells
        library list --gpu g9
        library list --model nosuch
        library show g9/net
        library remove g9/net
        library remove g9/net
        library show p100-no-cudnn
    """,
    "export": """
        export a.msgpack -o a.json
        import a.json -o c.msgpack
        diff a.msgpack c.msgpack
        export r.msgpack -o r.json.gz --json
    """,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_empty_library(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "110")
    recorded = training(steps=8, jitter_us=(0, 3, 1))
    other = [*calls(32), Call("aten::mul", "8,8", 90, "elementwise_mul")]
    for name, trace in (
        ("a", recorded),
        ("b", training(steps=8, jitter_us=(0, 2), kernel_us=14, loader_us=35)),
        ("r", replay_of(recorded, 1.1, missing=[{"op": "aten::foo", "shapes": "2,2", "count": 3}])),
        ("other", training(steps=8, batch=16, made=other)),
        ("dp", data_parallel()),
        ("phases", phase_grained()),
    ):
        save(trace, Path(f"{name}.msgpack"))
    Path("budgets.toml").write_text(_BUDGETS)
    write_cells("one.cells", GPU, [a_cell("net")], {})
    return tmp_path


def json_in_short(text: str) -> str:
    """Return JSON in which each innermost list or object is on one line, and numbers have ten digits."""
    rounded = json.loads(text, parse_float=lambda number: float(f"{float(number):.10g}"))
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda inner: re.sub(r"\s+", " ", inner[0]), json.dumps(rounded, indent=1)) + "\n"


@pytest.mark.parametrize("name", SESSIONS)
def test_a_sequence_of_commands_prints_the_golden_output(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = []
    for words in map(str.strip, SESSIONS[name].strip().splitlines()):
        code = run(words.split())
        out, err = capfd.readouterr()
        out = json_in_short(out) if "--json" in words else out
        said += [f"$ trace {words}", out + err + f"(exit code {code})", ""]
    said += [f"{path.name}:\n{path.read_text()}" for path in (folder / "made.toml", folder / "x.xml") if path.exists()]
    text = "\n".join(said).replace(str(folder), "FOLDER").replace(str(ROOT), "ROOT")
    assert_golden(f"commands_{name}", text)

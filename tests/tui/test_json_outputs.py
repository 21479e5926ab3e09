"""Tests that the JSON of each command has the type in docs/json.md, and that this page is up to date."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.traces.library.test_library_cells import GPU, a_cell
from tests.tui.json_types import PAGE, faults
from tests.tui.own_library import use_empty_library
from traces.library.cells import write_cells
from traces.model.json_facts import OMITTED_IF_EMPTY, OMITTED_IF_NONE, as_json, extended
from tui.cli import run


class Shade(StrEnum):
    DARK = "dark"


@dataclass(frozen=True)
class Inner:
    at_ns: int
    shares: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Contains one object."""

    shade: Shade  # None and True are Python's words
    kind: Literal["a", "b"]  # one of two
    # where it is
    inner: list[Inner]
    pair: tuple[int, int] | None  # first and last
    rest: list[str] = field(default_factory=list, metadata=OMITTED_IF_EMPTY)  # further texts
    note: str | None = field(default=None, metadata=OMITTED_IF_NONE)  # a remark


SOUND = {"shade": "dark", "kind": "a", "inner": [{"at_ns": 3, "shares": {"x": 0.5}}], "pair": [1, 2]}


def test_json_of_the_documented_type_is_accepted() -> None:
    assert faults(SOUND, Outer) == []
    assert faults(SOUND | {"pair": None, "rest": ["x"]}, Outer) == []
    assert as_json(Outer(shade=Shade.DARK, kind="a", inner=[Inner(3, {"x": 0.5})], pair=(1, 2))) == SOUND


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"shade": "light"}, ".shade: 'light' is not \"dark\""),
        ({"kind": "c"}, ".kind: 'c' is not \"a\" or \"b\""),
        ({"inner": {}}, ".inner: {} is not array of [Inner](#inner)"),
        ({"inner": [{"at_ns": 1.5, "shares": {}}]}, ".inner[0].at_ns: 1.5 is not integer"),
        ({"inner": [{"at_ns": True, "shares": {}}]}, ".inner[0].at_ns: True is not integer"),
        ({"inner": [{"at_ns": 1}]}, ".inner[0].shares: missing"),
        ({"inner": [{"at_ns": 1, "shares": {"x": "1"}}]}, ".inner[0].shares.x: '1' is not number"),
        ({"pair": [1, 2, 3]}, ".pair: [1, 2, 3] is not array of 2 integer"),
        ({"more": 1}, ".more: not a key of Outer"),
    ],
)
def test_json_of_the_wrong_type_is_reported(changed: dict[str, Any], fault: str) -> None:
    assert faults(SOUND | changed, Outer) == [fault]


def test_a_missing_required_key_is_reported() -> None:
    assert faults({key: value for key, value in SOUND.items() if key != "pair"}, Outer) == [".pair: missing"]


def test_optional_json_fields_are_omitted_if_empty() -> None:
    assert as_json(Outer(shade=Shade.DARK, kind="a", inner=[], pair=None, rest=[], note="")) == {
        "shade": "dark", "kind": "a", "inner": [], "pair": None, "note": "",
    }  # fmt: skip


def test_the_json_of_an_extended_result_contains_base_and_added_fields() -> None:
    @dataclass(frozen=True)
    class More(Inner):
        share: float

    assert as_json(extended(More, Inner(3, {}), share=0.5)) == {"at_ns": 3, "shares": {}, "share": 0.5}


def test_a_section_of_the_json_page_lists_keys_and_types_and_comments() -> None:
    assert PAGE.section(Outer).splitlines()[1:] == [
        "## Outer",
        "",
        "| key | type | meaning |",
        "|---|---|---|",
        '| `shade` | "dark" | null and true are Python\'s words |',
        '| `kind` | "a" or "b" | one of two |',
        "| `inner` | array of [Inner](#inner) | where it is |",
        "| `pair` | array of 2 integer or null | first and last |",
        "| `rest` | array of string | further texts; omitted if empty |",
        "| `note` | string or null | a remark; omitted if null |",
    ]
    assert PAGE.object_row(Outer) == "| [Outer](#outer) | Contains one object. |\n"


def test_each_json_key_must_have_a_comment() -> None:
    with pytest.raises(AssertionError, match=r"Inner\.at_ns has no comment"):
        PAGE.section(Inner)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.PAGE.read_text(encoding="utf-8") == PAGE.page(), "run python docs/json_page.py"


def printed(capfd: pytest.CaptureFixture[str], command: str, *words: str, code: int = 0) -> None:
    """Run a command, and check its JSON against the type in docs/json.md."""
    assert run(list(words)) == code, capfd.readouterr().err
    assert faults(json.loads(capfd.readouterr().out), PAGE.OUTPUTS[command]) == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_empty_library(tmp_path, monkeypatch)
    return tmp_path


def test_the_json_of_commands_on_bundled_recordings_has_the_documented_keys(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    both = "p100-no-cudnn", "p100x2-no-cudnn"
    Path("budgets.toml").write_text('[budget]\nstep_time = "1 ms"\n')
    printed(capfd, "trace info --json", "info", both[1], "--json")
    printed(capfd, "trace diff --json", "diff", *both, "--json", code=1)
    printed(capfd, "trace diff --json", "diff", *both, "--json", "--gate", "budgets.toml", code=1)
    printed(capfd, "trace explain --json", "explain", *both, "--json")
    printed(capfd, "trace export --json", "export", both[0], "-o", "x.json.gz", "--json")
    printed(capfd, "trace library show RECORDING --json", "library", "show", both[0], "--json")


def test_the_json_of_commands_on_a_profile_has_the_documented_keys(
    folder: Path, shared_traces: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    profile = str(shared_traces / "v100_resnet50_workers0.json.gz")
    printed(capfd, "trace import --json", "import", profile, "-o", "a.msgpack", "--json")
    printed(capfd, "trace diff --json", "diff", "a.msgpack", "a.msgpack", "--json")
    printed(capfd, "trace diff --by function --json", "diff", "a.msgpack", "a.msgpack", "--by", "function", "--json")
    printed(capfd, "trace predict --json", "predict", "a.msgpack", "--on-gpu", "T4", "--price", "2", "--json")
    printed(capfd, "trace predict --sweep --json", "predict", "a.msgpack", "--sweep", "gpus", "--json")


def test_the_json_of_library_commands_has_the_documented_keys(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_cells("one.cells", GPU, [a_cell("net")], {})
    printed(capfd, "trace library list --json", "library", "list", "--json")
    printed(capfd, "trace library show ENTRY --json", "library", "show", "v100/resnet50", "--json")
    printed(capfd, "trace library check --json", "library", "check", "one.cells", "none.cells", "--json", code=2)
    printed(capfd, "trace library add --json", "library", "add", "one.cells", "--json")
    printed(capfd, "trace library remove --json", "library", "remove", a_cell("net").name, "--json")

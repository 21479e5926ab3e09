"""Reads the dataclasses in the source code, and writes docs/json.md, which describes the JSON output of each command.

    python docs/json_page.py

Each dataclass field becomes a JSON key. The comment beside or above a field becomes the description of the JSON key.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from traces.comparison.comparison_figures import ComparisonFacts
from traces.comparison.explain import Explanation
from traces.figures.summary import Summary
from tui.commands import diff, doctor, export, fit, library, predict, stalls
from tui.text.info import ImportFacts

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "json.md"
OUTPUTS: dict[str, type] = {
    "trace info --json": Summary,
    "trace import --json": ImportFacts,
    "trace diff --json": diff.DiffFacts,
    "trace replay --report": ComparisonFacts,
    "trace diff --by function --json": diff.DiffByFunctionFacts,
    "trace explain --json": Explanation,
    "trace predict --json": predict.PredictionFacts,
    "trace predict --sweep --json": predict.SweepFacts,
    "trace fit --json": fit.FitFacts,
    "trace stalls --json": stalls.StallsFacts,
    "trace export --json": export.ExportFacts,
    "trace library list --json": library.ListFacts,
    "trace library show RECORDING --json": library.RecordingFacts,
    "trace library show ENTRY --json": library.CellFacts,
    "trace library add --json": library.AddFacts,
    "trace library check --json": library.CheckFacts,
    "trace library remove --json": library.RemoveFacts,
    "trace doctor --json": doctor.DoctorFacts,
}
HEAD = """# JSON output

The script `docs/json_page.py` generates this page from the dataclasses of all JSON outputs. Later releases may add JSON keys,
but keep all existing names. The suffix of a key gives the unit: `_ns` nanoseconds, `_bytes` bytes, `_s` seconds. Shares and
errors are fractions: 0.05 means 5 %.

## Commands

| command | result |
|---|---|
"""
OBJECTS = """
## Objects

| object | meaning |
|---|---|
"""
_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", Any: "any JSON", NoneType: "null"}


@cache
def hints_of(kind: type) -> dict[str, Any]:
    origin = get_origin(kind) or kind
    hints = get_type_hints(origin)
    given: dict[Any, Any] = dict(zip(getattr(origin, "__parameters__", ()), get_args(kind), strict=False))
    return {field.name: given.get(hints[field.name], hints[field.name]) for field in fields(origin)}


def is_omitted(kind: type, name: str) -> str:
    """Return "omitted if empty" or "omitted if null" for an optional JSON key. Return "" for a required key."""
    of = next(field for field in fields(get_origin(kind) or kind) if field.name == name)
    return str(of.metadata.get("json", ""))


def name_of(kind: type) -> str:
    return (get_origin(kind) or kind).__name__


def type_text(hint: Any) -> str:
    origin, given = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(type_text(one) for one in given)
    if origin is Literal:
        return " or ".join(f'"{one}"' for one in given)
    if origin is tuple and given[-1] is not Ellipsis:
        return f"array of {len(given)} {type_text(given[0])}"
    if origin in (list, tuple):
        return f"array of {type_text(given[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"object of {type_text(given[1])}"
    if is_dataclass(origin or hint):
        texts = [f"({text})" if " or " in text else text for text in map(type_text, given)]
        return " of ".join((f"[{name_of(hint)}](#{name_of(hint).lower()})", *texts))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(f'"{one.value}"' for one in hint)
    return "any type" if isinstance(hint, TypeVar) else _SCALARS[hint]


def comments_of(kind: type) -> dict[str, str]:
    found: dict[str, str] = {}
    for of in reversed((get_origin(kind) or kind).__mro__):
        if not is_dataclass(of):
            continue
        lines, _ = inspect.getsourcelines(of)
        body = ast.parse("".join(lines)).body[0]
        assert isinstance(body, ast.ClassDef)
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = _comment(lines, node)
    return found


def _comment(lines: list[str], node: ast.AnnAssign) -> str:
    _, sign, beside = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :].partition("# ")
    if sign:
        return beside.strip()
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip().startswith("# "):
            break
        above.insert(0, line.strip()[2:])
    return " ".join(above)


def described(kind: Any) -> Iterator[type]:
    origin = get_origin(kind) or kind
    if isinstance(origin, type) and is_dataclass(origin):
        yield origin
    for one in get_args(kind):
        yield from described(one)


def all_objects() -> list[type]:
    found = dict[type, None]()
    waiting: list[Any] = list(OUTPUTS.values())
    while waiting:
        for kind in described(waiting.pop(0)):
            if kind not in found:
                found[kind] = None
                waiting += hints_of(kind).values()
    return list(found)


def by_key(doc: str, keys: list[str]) -> tuple[str, dict[str, list[str]]]:
    """Split a class docstring into the text about the class, and the sentences about each field."""
    rest, of_keys = list[str](), dict[str, list[str]]()
    for paragraph in doc.split("\n\n"):
        kept = list[str]()
        for sentence in re.split(r"(?<=[.!?]) +(?=[A-Z`\"])", paragraph):
            named = [key for key in re.findall(r"`(\w+)`", sentence) if key in keys]
            if named and (rest or kept):
                of_keys.setdefault(named[0], []).append(sentence)
            else:
                kept.append(sentence)
        rest += [" ".join(kept)] if kept else []
    return "\n\n".join(rest), of_keys


def described_keys(kind: type) -> tuple[str, dict[str, list[str]]]:
    # dataclass gives a class without a docstring the text of its signature
    is_written = not (kind.__doc__ or "").startswith(f"{kind.__name__}(")
    doc = (inspect.getdoc(kind) or "").replace("\n", " ").replace("  ", "\n\n") if is_written else ""
    return by_key(doc, list(hints_of(kind)))


def meaning_of_object(hint: Any) -> str:
    *_, inner = [NoneType, *described(hint)]
    first = described_keys(inner)[0].partition(". ")[0].rstrip(".") if is_dataclass(inner) else ""
    return re.sub(r"^(Contains|Stores) ", "", first)


def in_json(text: str) -> str:
    """Replace Python's constants by those of JSON."""
    return re.sub(r"\b(True|False|None)\b", lambda found: {"True": "true", "False": "false", "None": "null"}[found[1]], text)


def section(kind: type) -> str:
    comments, of_keys = comments_of(kind), described_keys(kind)[1]
    rows = []
    for name, hint in hints_of(kind).items():
        of_key = list(filter(None, (comments.get(name, ""), *of_keys.get(name, ())))) or [meaning_of_object(hint)]
        assert any(of_key), f"{name_of(kind)}.{name} has no comment"
        rows.append(f"| `{name}` | {type_text(hint)} | {in_json('; '.join(filter(None, (*of_key, is_omitted(kind, name)))))} |")
    return "\n".join([f"\n## {name_of(kind)}\n", "| key | type | meaning |", "|---|---|---|", *rows, ""])


def object_row(kind: type) -> str:
    meaning = in_json(described_keys(kind)[0].replace("\n\n", " "))
    return f"| [{name_of(kind)}](#{name_of(kind).lower()}) | {meaning} |\n" if meaning else ""


def page() -> str:
    commands = "".join(f"| `{command}` | {type_text(kind)} |\n" for command, kind in OUTPUTS.items())
    objects = all_objects()
    return HEAD + commands + OBJECTS + "".join(map(object_row, objects)) + "".join(map(section, objects))


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

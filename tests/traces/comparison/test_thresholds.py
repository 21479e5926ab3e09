"""Tests that thresholds which decide a verdict are defined in one module, and that docs/constants.md lists them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from replayer.cost_model import constants
from tests.test_studies import study
from traces.comparison import thresholds

ROOT = Path(__file__).resolve().parents[3]
PAGE = study("constants_page")

_SIZES_OF_FORMATS = {
    "traces/chrome/export_notes.py": {"FORMAT"},
    "traces/comparison/comparison_figures.py": {"VERSION"},
    "traces/figures/summary.py": {"VERSION"},
    "traces/format/column_encoding.py": {"MAX_ROWS", "PLAIN_NUMBERS", "SIGNED"},
    "traces/format/frames.py": {
        "DATA",
        "END",
        "FORMAT_VERSION",
        "FRAME_MARKER",
        "MAX_CONTENT_BYTES",
        "_COUNTED_FROM",
        "_LARGE_BYTES",
    },
    "traces/format/item_reading.py": {"_MAX_LISTS_AND_MAPS"},
    "traces/format/items.py": {"MAX_DEPTH", "_BYTES_PER_TRACK", "_ITEM_ROWS", "_LONGEST_TEXT"},
    "traces/format/trace_file.py": {"_SHARED_BYTES", "_STORED_BYTES"},
    "traces/format/unpack_limit.py": {"_BASE_BYTES", "_TIMES_THE_FILE"},
    "traces/kineto/reading/eras.py": {"_ABSOLUTE_US", "_EPOCHAL_US", "_MAX_US", "_UNIX_NS", "0.5"},
    "traces/kineto/reading/event_columns.py": {"_HUGE", "_MAX_DURATION_NS", "_MOST_OF_TID"},
    "traces/kineto/reading/event_rows.py": {"ABSENT"},
    "traces/kineto/reading/groups.py": {"_PIDS_PER_RANK"},
    "traces/kineto/reading/sources.py": {"_TAR_MAGIC_AT"},
    "traces/kineto/reading/text.py": {"_WINDOW_CHARS"},
    "traces/kineto/spans/spans.py": {"_LONGEST_WINDOW_US", "_SYNC_ROWS"},
    "traces/library/cells.py": {"VERSION", "_MOST_BATCHES", "_MOST_FILE_BYTES", "_MOST_VALUE"},
    "traces/model/invariants.py": {"_MOST", "_MOST_THREADS"},
    "traces/model/layouts.py": {"IMAGES"},
    "traces/model/trace.py": {"NONE"},
    "traces/names/launch_configs.py": {"_DIMS", "_MOST"},
    "traces/script/step_rule.py": {"_STOPPED"},
}
_SENTINELS = {
    "traces/figures/pace.py": {"_LONG_AGO"},
    "traces/stalls/loader_model.py": {"_SCRIPT"},
    "tui/commands/diff.py": {"ALIKE", "CANNOT_BE_TOLD"},
    "tui/view/scene/tracks.py": {"ALL", "SIMILAR"},
}
_FACTS_OF_OTHERS = {  # numbers of releases and of hardware units
    "traces/kineto/spans/impossible.py": {"_DEPENDENT_LAUNCH_SINCE"},
    "traces/names/cards.py": {"_SLICES", "_SLICES_OF_A30"},
    "traces/script/launch.py": {"MOST_DEVICES", "OLDEST_TORCH"},
    "traces/names/cublas_workspace.py": {"_KEPT_BEFORE", "_KEPT_SINCE", "_KEPT_SINCE_WITH_HIP", "_LT_RELEASES"},
}
_ROUNDING = {
    "traces/comparison/changed_ops.py": {"_NOTHING_LEFT"},
    "traces/library/check.py": {"_ON_A_LINE"},
}
_LENGTHS_OF_SEARCHES = {  # a larger number takes more time, but changes no verdict
    "traces/comparison/changed_ops.py": {"_LONGEST_OP"},
    "traces/comparison/program/op_order.py": {"_MOST_EDITS"},
    "traces/library/check.py": {"_LINE_ROWS"},
    "traces/model/row_order.py": {"_DENSE"},
    "traces/stalls/data_stalls.py": {"MOST_WORKERS", "_MOST_OTHERS"},
    "traces/stalls/loader_model.py": {"_PARTS"},
    "tui/commands/record_sweep.py": {"_MOST_RUNS"},
    "tui/running/progress.py": {"_PERIOD_S"},
    "tui/trace_names.py": {"_LONG_IMPORT_S"},
    "tui/running/replay_progress.py": {"_LOOK_S"},
    "tui/view/live.py": {"_LEAST_WAIT_S", "_WAIT_OVER_LOOK"},
}
_ROOM_ON_THE_SCREEN = {
    "traces/chrome/counters.py": {"_MOST"},
    "traces/comparison/explain.py": {"1000000.0"},
    "traces/kineto/spans/python_calls.py": {"SHORT_NS"},
    "tui/commands/diff.py": {"_MOST"},
    "tui/commands/export.py": {"_MOST_NAMED"},
    "tui/commands/stalls.py": {"_LEAST_FREE_BYTES", "_MOST_FOR_SOCKETS"},
    "tui/formatting.py": {"0.005", "FEW_DEVICES", "_LEAST_APART"},
    "tui/help.py": {"_WIDEST"},
    "tui/report/charts.py": {"100000.0", "_LABEL", "_LETTER", "_WIDTH"},
    "tui/report/page.py": {"5e-05"},
    "tui/report/plots.py": {"_MOST_SINGLE_STEPS", "_POINTS"},
    "tui/memory_sizes.py": {"_SMALLEST_BARE"},
    "tui/text/diff.py": {"0.001", "_ALL", "_CHANGE_FIGURES", "_SHOWN_MISSING"},
    "traces/drawing/timeline_html.py": {"_MOST_BARS"},
    "tui/text/analyses.py": {"_MOST_OPS"},
    "tui/text/compiled.py": {"_LONGEST_NAME", "_NAMES_SHOWN"},
    "tui/text/info.py": {"_MOST_KINDS", "_MOST_STEPS"},
    "tui/text/predict.py": {"_BAR"},
    "tui/view/actions/movement.py": {"_PAN"},
    "tui/view/app.py": {"_FOLLOWED_STEPS", "HIGH_ENOUGH", "WIDE_ENOUGH"},
    "tui/view/scene/alignment.py": {"ANCHOR_NS"},
    "tui/view/scene/character_rows.py": {"NAME_COLUMNS", "SAME_SHARE", "_LEAST_ROOM"},
    "tui/view/scene/compared.py": {"_GAP_SHARE"},
    "tui/view/screens.py": {"_GLANCE"},
    "tui/view/timeline/details.py": {"_HEAD"},
    "tui/view/timeline/headline.py": {"0.0005"},
    "tui/view/timeline/palette.py": {"0.04045"},
    "tui/view/timeline/ruler.py": {"_TICK_COLUMNS"},
    "traces/analyses/stragglers.py": {"_FEW_SIMILAR"},
    "tui/view/timeline/shown_rows.py": {"_FEW_RANKS", "_FEW_STREAMS"},
    "tui/view/timeline/timeline.py": {"RULER_LINES", "_WIDE"},
    "tui/view/timeline/window.py": {"LEAST_NS", "MARGIN"},
}
NO_THRESHOLDS = (
    _SIZES_OF_FORMATS, _SENTINELS, _FACTS_OF_OTHERS, _ROUNDING, _LENGTHS_OF_SEARCHES, _ROOM_ON_THE_SCREEN,
)  # fmt: skip


def names_in(node: ast.AST) -> set[str]:
    """Return the names of variables and attributes in the code."""
    named = (one for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute))
    return {one.id if isinstance(one, ast.Name) else one.attr for one in named}


def is_number(node: ast.AST | None) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Tuple) and bool(node.elts) and all(map(is_number, node.elts))


def comparisons(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield each comparison, and each call that returns the smaller or larger of its arguments."""
    for node in ast.walk(tree):
        chooses = isinstance(node, ast.Call) and names_in(node.func) & {"min", "max", "minimum", "maximum", "clip"}
        if isinstance(node, ast.Compare) or chooses:
            yield node


def names_compared(tree: ast.Module) -> frozenset[str]:
    return frozenset().union(*map(names_in, comparisons(tree)))


def own_numbers(tree: ast.Module) -> set[str]:
    """Return the module-level names of numbers that the source defines."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                found |= {name.id for name, value in pairs if isinstance(name, ast.Name) and is_number(value)}
    return found


def compared_numbers(tree: ast.Module, everywhere: set[str]) -> set[str]:
    """Return the constants of the file that any comparison uses, and the fractions without a name.

    Private constants count only if this file uses them.
    """
    compared = names_compared(tree)
    named = {name for name in own_numbers(tree) if name in compared or (not name.startswith("_") and name in everywhere)}
    fractions = {
        ast.unparse(one)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for one in ast.walk(node)
        if (isinstance(one, ast.Constant) and type(one.value) is float and not one.value.is_integer()) or is_large(one)
    }
    return named | fractions


def is_large(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is float and abs(node.value) >= 1000


def test_the_check_finds_all_constants_that_comparisons_use() -> None:
    source = "A = 3\n_B: int = 1 << 4\nC, _D = 1.5, -2\nE = 7\n_F = (2, 0)\n"
    source += "x = y > A\nz = min(y, _B)\nw = np.clip(y, 0, C)\nv = y < _F or y < 0.3 * z or y > 1 or y > 1e6\nu = _D + E\n"
    assert compared_numbers(ast.parse(source), set()) == {"A", "_B", "C", "_F", "0.3", "1000000.0"}
    assert compared_numbers(ast.parse("A = 3\n_B = 4"), {"A", "_B"}) == {"A"}  # a different file uses A in a comparison


@pytest.mark.parametrize("module", [thresholds, constants])
def test_every_threshold_is_imported_by_some_file(module: ModuleType) -> None:
    assert PAGE.users(module.__name__).keys() == PAGE.constants_of(module).keys()


def test_a_threshold_must_state_its_origin(tmp_path: Path) -> None:
    module = ModuleType("numbers_of_a_test")
    module.__file__ = str(tmp_path / "numbers.py")
    vars(module).update(LONG=2, SHORT=1)
    described = "# a step that takes longer\n# is long\n# measured: on two: GPUs\nLONG = (\n    2\n)  # times the pace\n"
    Path(module.__file__).write_text(described)
    long = (2, "times the pace", "a step that takes longer is long", "measured", "on two: GPUs")
    assert PAGE.constants_of(module) == {"LONG": long}
    for lacking in ("# a short step\nSHORT = 1  # s\n", "# a short step\n# chosen: by me\nSHORT = 1\n"):
        Path(module.__file__).write_text(described + lacking)
        with pytest.raises(ValueError, match="SHORT has no comment"):
            PAGE.constants_of(module)


def test_the_constants_page_lists_the_files_that_import_each_constant(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "tui").mkdir()
    (tmp_path / "traces" / "a.py").write_text("def f():\n    from m.numbers import A, B as C\n")
    (tmp_path / "tui" / "b.py").write_text("from m.numbers import A\nfrom m.others import B\nD = numbers.C\n")
    (tmp_path / "tui" / "c.py").write_text("from m import numbers\nprint(numbers.C, others.A)\n")
    assert PAGE.users("m.numbers", tmp_path) == {"A": ["traces/a.py", "tui/b.py"], "B": ["traces/a.py"], "C": ["tui/c.py"]}


def test_thresholds_are_defined_only_in_the_thresholds_module() -> None:
    files = [path for room in ("traces", "tui") for path in sorted((ROOT / room).rglob("*.py")) if path.stem != "thresholds"]
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in files}
    everywhere = set().union(*map(names_compared, trees.values()))
    found = {name: numbers for name, tree in trees.items() if (numbers := compared_numbers(tree, everywhere))}
    allowed: dict[str, set[str]] = {}
    for group in NO_THRESHOLDS:
        for name, numbers in group.items():
            allowed[name] = allowed.get(name, set()) | numbers
    assert found == allowed


def test_the_constants_page_is_up_to_date() -> None:
    assert PAGE.PAGE.read_text(encoding="utf-8") == PAGE.page(), "run python docs/constants_page.py"


def test_threshold_values_are_formatted_for_readers() -> None:
    assert PAGE.value_text(25_000) == "25 000"
    assert PAGE.value_text(0.25) == "0.25"
    assert PAGE.value_text({"a": (1.6, 0.2)}) == "a: 1.6, 0.2"

"""Makes the tables that show the results of analyses, such as GPU idle time by reason.

    table_of_analysis(scene, "idle").rows[0].values     # ("waiting for data", -12_000, 58_700_000, 58_688_000)
"""

from __future__ import annotations

from traces.analyses.peak_memory import held_at_peak
from tui.formatting import FigureTable, Head, Unit
from tui.text.analyses import ANALYSES, Sides
from tui.text.compiled import compared_compiled_tables, compiled_tables
from tui.view.scene.scene import Scene
from tui.view.tables.parts import TableRow, TabTable


def table_of_analysis(scene: Scene, tab: str) -> TabTable:
    if tab == "memory":
        return _memory(scene)
    if tab in _NOT_COMPILED:
        table, missing = _compiled(scene)[list(_NOT_COMPILED).index(tab)], _NOT_COMPILED[tab]
    else:
        both = None if scene.comparison is None else scene.comparison.communication
        ranks = [scene.summary.communication] if scene.comparison is None else [None, None] if both is None else [*both]
        streams = () if scene.comparison is None else scene.comparison.streams
        table, missing = ANALYSES[tab].table(Sides(scene.analyses, scene.words, streams, ranks)), ANALYSES[tab].missing
        table = table._replace(heads=[Head(table.title), *table.heads[1:]])
    return TabTable(table.heads, [TableRow(row) for row in table.rows], "" if table.rows else missing)


def _compiled(scene: Scene) -> list[FigureTable]:
    if scene.comparison is not None:
        return compared_compiled_tables(scene.comparison, scene.words, most_kernels=None)
    return compiled_tables([one.compiled for one in scene.analyses], scene.words, most_kernels=None)


def _memory(scene: Scene) -> TabTable:
    rows = []
    for side, trace in enumerate(scene.traces):
        for device in range(len(trace.devices)):
            peak = held_at_peak(trace, device)
            for one in peak.held if peak is not None else ():
                label = trace.device_label(device) + (", freed by size" if peak is not None and peak.by_size else "")
                rows.append(TableRow((one.op or "(no op)", one.phase, scene.words[side], one.bytes, one.count, label)))
    rows.sort(key=lambda row: -float(row.values[3] or 0))
    heads = [Head("held at the peak, by op"), Head("phase"), Head("trace")]
    heads += [Head("bytes", Unit.BYTES), Head("count", Unit.COUNT), Head("device")]
    return TabTable(heads, rows, "" if rows else "no memory events are recorded")


_NOT_COMPILED = {
    "regions": "no compiled code is recorded",
    "fusions": "no fused kernels are recorded",
    "breaks": "no graph breaks are recorded",
    "compilations": "no compilations are recorded",
    "graphs": "no launches of CUDA graphs are recorded",
    "fused": "shown if one trace is compiled and the other is eager",
}
TABS_OF_ANALYSES = ("memory", *ANALYSES, *_NOT_COMPILED)

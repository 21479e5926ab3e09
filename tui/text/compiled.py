"""Formats notes on compiled code: regions of torch.compile, graph breaks and recompilations.

compiled_sentence(comparison)       # "The script compiles into 43 regions, the recording into 2."
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.formatting import ABSENT, count_text, time_text

if TYPE_CHECKING:
    from traces.comparison.compare import Both, Comparison
    from traces.compiled.region_figures import CompiledFigures, Region

_NAMES_SHOWN = 3
_LONGEST_NAME = 30
Rows = list[list[str]]


def compiled_sentence(comparison: Comparison) -> str:
    """Returns a sentence if only one trace is compiled, or if the traces have different numbers of regions. Otherwise "".

    The sentence says what the difference means for the figures.
    """
    both = comparison.compiled
    if both is None:
        return ""
    first, second = ("the recording", "the script") if comparison.replay else ("A", "B")
    if not both.replayed.is_compiled:
        said = f"{first} is compiled and {second} is eager: fused kernels have no counterpart among the eager ops"
    elif not both.recorded.is_compiled and comparison.replay:
        said = f"{second} is compiled and {first} is eager: compiled code takes the times of the recorded eager ops"
    elif not both.recorded.is_compiled:
        said = f"{second} is compiled and {first} is eager: fused kernels have no counterpart among the eager ops"
    elif (count := len(both.replayed.regions)) != len(both.recorded.regions):
        regions = "1 region" if count == 1 else f"{count_text(count)} regions"
        said = f"{second} compiles into {regions}, {first} into {count_text(len(both.recorded.regions))}"
    else:
        return ""
    return f"{said[0].upper()}{said[1:]}."


def compiled_sentences(comparison: Comparison) -> list[str]:
    """Returns notes on what was compiled in the second trace."""
    both = comparison.compiled
    if both is None or not both.replayed.is_compiled:
        return []
    of, said = both.replayed, []
    if of.graph_breaks is not None:
        breaks = "1 graph break" if of.graph_breaks == 1 else f"{count_text(of.graph_breaks)} graph breaks"
        recompiles = "1 recompilation" if of.recompiles == 1 else f"{count_text(of.recompiles)} recompilations"
        took = f"; tracing took {time_text(of.compile_ns)} on this host, in the first steps" if of.compile_ns else ""
        said.append(f"Compiled code: {breaks}, {recompiles}{took}.")
    if of.eager:
        regions = "1 compiled region" if len(of.eager) == 1 else f"{count_text(len(of.eager))} compiled regions"
        listed = "; ".join(f"{one.region} ({one.reason})" for one in of.eager[:_NAMES_SHOWN])
        said.append(f"{regions} could not be traced and ran eagerly: {listed}.")
    return said


def region_table(both: Both[CompiledFigures], first: str, second: str) -> tuple[list[str], Rows]:
    """Returns the header and the rows of a table of compiled regions, with calls and GPU time per step in both traces."""
    sides = [{region.name: region for region in of.regions} for of in (both.recorded, both.replayed)]
    rows = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        ours, theirs = (side.get(name) for side in sides)
        either = ours or theirs
        assert either is not None
        rows.append([_words(name, either), _calls(ours), _calls(theirs), _time(ours), _time(theirs)])
    return ["compiled region per step", f"calls {first}", f"calls {second}", f"GPU {first}", f"GPU {second}"], rows


def _words(name: str, region: Region) -> str:
    """Returns the region's number and what its kernels are: "0/1: 5 fused kernels (gelu_native_layer_norm...), mm, addmm"."""
    count = len(region.fused)
    names = ", ".join(_fused_ops(kernel) for kernel in region.fused[:_NAMES_SHOWN])
    more = "..." if count > _NAMES_SHOWN else ""
    parts = [f"{count} fused kernel{'s' if count != 1 else ''} ({names}{more})"] if count else []
    parts += [op.removeprefix("aten::") for op in region.external[:_NAMES_SHOWN]]
    return f"{name}: {', '.join(parts)}" if parts else name


def _fused_ops(kernel: str) -> str:
    """Returns the ops in the name of a Triton kernel, such as "gelu_add" for "triton_poi_fused_gelu_add_0"."""
    ops = kernel.partition("_fused_")[2].rstrip("0123456789").strip("_") or kernel
    return ops if len(ops) <= _LONGEST_NAME else f"{ops[:_LONGEST_NAME]}..."


def _calls(region: Region | None) -> str:
    if region is None:
        return ABSENT
    return f"{region.calls:g} + {region.backwards:g}" if region.backwards else f"{region.calls:g}"


def _time(region: Region | None) -> str:
    return ABSENT if region is None else time_text(region.gpu_ns)

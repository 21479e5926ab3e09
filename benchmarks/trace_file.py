"""Measures import time and file size for real recordings.

For each recording, the benchmark prints two ratios. The first is the size of the .json.gz file divided by the size of the trace
file. The second is the import time (decompressed JSON to Trace) divided by the time of `orjson.loads` for the same bytes. Both
times are measured alternately in one run, without garbage collection. The benchmark also prints the time to load the trace
file. With --hta, it prints the time that Holistic Trace Analysis takes to parse the recording.

With --stacks, the benchmark measures recordings with Python call stacks: the file size without stacks, with stacks as in `trace
record --stacks`, and with every call.

    python benchmarks/trace_file.py --traces ../shared/traces [--all] [--runs 5] [--hta] [--json trace_file.json]
    python benchmarks/trace_file.py --traces ../shared/traces --all --stacks
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import orjson

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from traces.format.trace_file import load, save  # noqa: E402
from traces.kineto import read_kineto_bytes  # noqa: E402
from traces.kineto.spans.python_calls import without_short_calls  # noqa: E402
from traces.model.trace import HostKind, Trace  # noqa: E402

TRAINING = (
    "v100_resnet50_workers0",
    "v100_resnet50_workers4",
    "v100_ddp_memory_rank1of2",
    "a100_ddp_diff_control",
    "v100_ddp_diff_test",
)


def seconds(work: Callable[[], object]) -> float:
    """Return the time of `work` without garbage collection, and without the time to free the result."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        result = work()
        took = time.perf_counter() - start
    finally:
        gc.enable()
    del result
    return took


def hta_seconds(path: Path) -> float | None:
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    try:
        return seconds(lambda: parse_trace_dataframe(str(path), ParserConfig.get_default_cfg()))
    except Exception as failure:
        print(f"  Holistic Trace Analysis does not read {path.name}: {type(failure).__name__}", file=sys.stderr)
        return None


def measure(path: Path, runs: int, folder: Path, hta: bool) -> dict[str, Any]:
    data = gzip.decompress(path.read_bytes())
    parse, build = [], []
    for _ in range(runs):
        parse.append(seconds(lambda: orjson.loads(data)))
        build.append(seconds(lambda: read_kineto_bytes(data, path.name)))
    file = folder / "t.msgpack"
    save(read_kineto_bytes(data, path.name), file)
    loads = [seconds(lambda: load(file)) for _ in range(runs)]
    return {
        "json_bytes": len(data),
        "gz_bytes": path.stat().st_size,
        "file_bytes": file.stat().st_size,
        "gz_over_file": path.stat().st_size / file.stat().st_size,
        "orjson_s": median(parse),
        "import_s": median(build),
        "import_over_orjson": median(b / p for b, p in zip(build, parse, strict=True)),
        "load_s": median(loads),
        "hta_s": hta_seconds(path) if hta else None,
    }


def with_stacks(path: Path, folder: Path) -> dict[str, Any] | None:
    """Return calls and bytes without stacks, with folded stacks and with all calls, or None if the recording has no stacks."""
    content = orjson.loads(gzip.decompress(path.read_bytes()))
    events = content if isinstance(content, list) else content["traceEvents"]
    whole = read_kineto_bytes(orjson.dumps(content), path.name)
    bare = [event for event in events if event.get("cat") != "python_function"]
    of_ops = sum(event.get("args", {}).pop("Call stack", None) is not None for event in bare)
    if len(bare) == len(events) and not of_ops:
        return None
    content = bare if isinstance(content, list) else content | {"traceEvents": bare}
    lean = without_short_calls(whole)

    def file_bytes(trace: Trace) -> int:
        save(trace, folder / "t.msgpack")
        return (folder / "t.msgpack").stat().st_size

    row: dict[str, Any] = {"calls": len(events) - len(bare), "stacks_of_ops": of_ops}
    row |= {"calls_kept": int((lean.host.kind == HostKind.PYTHON).sum())}
    row |= {"without_bytes": file_bytes(read_kineto_bytes(orjson.dumps(content), path.name))}
    row |= {"folded_bytes": file_bytes(lean), "whole_bytes": file_bytes(whole)}
    return row | {"folded_over_without": row["folded_bytes"] / row["without_bytes"]}


def print_stacks(paths: list[Path]) -> dict[str, Any]:
    print(f"{'recording':36} {'calls':>7} {'kept':>6} {'stacks of ops':>13} {'without kB':>10} {'folded kB':>9} {'times':>6} "
          f"{'every call, times':>17}")  # fmt: skip
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        for path in paths:
            if (row := with_stacks(path, Path(temporary))) is None:
                continue
            results[name := path.name.removesuffix(".json.gz")] = row
            print(
                f"{name:36} {row['calls']:7} {row['calls_kept']:6} {row['stacks_of_ops']:13}"
                f" {row['without_bytes'] / 1e3:10.1f} {row['folded_bytes'] / 1e3:9.1f} {row['folded_over_without']:6.2f}"
                f" {row['whole_bytes'] / row['without_bytes']:17.2f}",
                flush=True,
            )
    if results:
        most = max(row["folded_over_without"] for row in results.values())
        print(f"\nwith stacks a file is {most:.2f} times its size at most")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--all", action="store_true", help="every recording of the folder, not only the training traces")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hta", action="store_true", help="time Holistic Trace Analysis too (it must be installed)")
    parser.add_argument("--stacks", action="store_true", help="instead measure what call stacks add to a file")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    paths = [args.traces / f"{name}.json.gz" for name in TRAINING]
    if args.all:
        paths = sorted(args.traces.glob("*.json.gz")) + sorted(args.traces.glob("*/*.json.gz"))
        paths = [path for path in paths if path.parent.name != "broken"]
    if args.stacks:
        results = print_stacks(paths)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))
        return
    print(f"{'recording':36} {'JSON MB':>8} {'.gz kB':>7} {'file kB':>8} {'gz/file':>8} {'import s':>9} {'/orjson':>8} "
          f"{'load ms':>8} {'HTA s':>6}")  # fmt: skip
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        for path in paths:
            row = results[path.name.removesuffix(".json.gz")] = measure(path, args.runs, Path(temporary), args.hta)
            hta = "-" if row["hta_s"] is None else f"{row['hta_s']:.1f}"
            print(
                f"{path.name.removesuffix('.json.gz'):36} {row['json_bytes'] / 1e6:8.1f} {row['gz_bytes'] / 1e3:7.0f}"
                f" {row['file_bytes'] / 1e3:8.1f} {row['gz_over_file']:8.1f} {row['import_s']:9.3f}"
                f" {row['import_over_orjson']:8.2f} {row['load_s'] * 1e3:8.1f} {hta:>6}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

"""Import and file figures, per real recording: sizes, and times beside what they are judged by.

Prints, for each recording: the size of its .json.gz over that of its trace file; the time to import (decompressed JSON to
Trace) over that of `orjson.loads` on the same bytes, the garbage collector off in both, alternating in one run; the time to
load the trace file; and, with --hta, how long Holistic Trace Analysis takes to parse the same recording.

    python benchmarks/trace_file.py --traces ../shared/traces [--all] [--runs 5] [--hta] [--json trace_file.json]
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

from traces.file import load, save  # noqa: E402
from traces.kineto import read_kineto_bytes  # noqa: E402

TRAINING = (
    "v100_resnet50_workers0",
    "v100_resnet50_workers4",
    "v100_ddp_memory_rank1of2",
    "a100_ddp_diff_control",
    "v100_ddp_diff_test",
)


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes with the collector off; what it returned is dropped outside the measurement."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--all", action="store_true", help="every recording of the folder, not only the training traces")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hta", action="store_true", help="time Holistic Trace Analysis too (it must be installed)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    paths = [args.traces / f"{name}.json.gz" for name in TRAINING]
    if args.all:
        paths = sorted(args.traces.glob("*.json.gz")) + sorted(args.traces.glob("*/*.json.gz"))
        paths = [path for path in paths if path.parent.name != "broken"]
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

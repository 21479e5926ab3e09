"""Finds recordings and step times in all folders of the library.

    gpus()                                  # [Gpu("a100", "NVIDIA A100-SXM4-40GB", ...), ...]
    device_named("v100")                    # "Tesla V100-PCIE-32GB", the V100 that was measured
    models("v100")                          # ["alexnet", "densenet121", ...]
    cell("v100", "resnet50").for_batch(32)         # CellTimes; NotMeasured outside the measured batch sizes
    match("v100", signature)                # the cell of the script's network or a similar network, and the differences

A library folder contains recordings (`*.msgpack`) and files of published step times (`*.cells`). The library consists of a
bundled folder, a user's folder, and the folders in the environment variable TRACE_LIBRARY.

Note [One name, one entry]
    If two folders contain an entry of the same name, using it raises an error with both file names. If the library silently
    chose one of the two, nobody would notice that the times come from the wrong file. Unreadable files are not listed, but
    reported by `faults`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from traces.library.cells import SUFFIX, CellFile, Gpu, LibraryCell, read_cells
from traces.library.matching import Match, nearest_network
from traces.model.trace import TraceError, TraceLibraryError
from traces.model.workload import WorkloadSignature
from traces.names import did_you_mean
from traces.names.cards import find_card, is_slice

BUNDLED = Path(__file__).parent
VARIABLE = "TRACE_LIBRARY"


def user_folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("trace-replay") / "library"


def folders() -> list[Path]:
    further = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    return [BUNDLED, user_folder(), *further]


def cell_files() -> list[CellFile]:
    return [file for path in _cell_paths() if isinstance(file := _opened(path), CellFile)]


def faults() -> list[str]:
    found = [*_unlisted(), *(str(fault) for path in _cell_paths() if isinstance(fault := _opened(path), TraceError))]
    seen: dict[tuple[str, str], Path] = {}
    twice: dict[tuple[Path, Path], list[str]] = {}
    for file in cell_files():
        for model in file.models:
            first = seen.setdefault((file.gpu.name, model), file.path)
            if first != file.path:
                twice.setdefault((first, file.path), []).append(f"{file.gpu.name}/{model}")
    return [*found, *(duplicate_text(names[0], *paths, others=len(names) - 1) for paths, names in twice.items())]


def gpus() -> list[Gpu]:
    return sorted({file.gpu.name: file.gpu for file in reversed(cell_files())}.values(), key=lambda gpu: gpu.name)


def gpu(name: str) -> Gpu:
    """Find a GPU in the trace library by its short name, such as "v100", or by a part of its device name, such as "Tesla V100".
    Raises TraceLibraryError with a list of similar names for an unknown GPU."""
    known = gpus()
    words = _words(name)
    for one in known:
        if name.lower() in (one.name, one.device.lower()):
            return one
    meant = [one for one in known if words and words <= _words(one.device)]
    if meant:
        return meant[0]
    names = [one.name for one in known]
    hint = did_you_mean(name.lower(), names, form=" ({})")
    raise TraceLibraryError(f"the library has no GPU {name}{hint}; it has: {', '.join(names)}")


def device_named(text: str) -> str:
    """Return the full device name of a GPU, such as "Tesla V100-PCIE-32GB" for "v100". If several GPUs match, choose one with
    published step times. Raises TraceError with a list of similar names for an unknown GPU."""
    with suppress(TraceLibraryError):
        text = gpu(text).device
    return text if is_slice(text) else find_card(text).names[0]


def models(gpu_name: str) -> list[str]:
    return sorted({model for file in files_of(gpu_name) for model in file.models})


def cell(gpu_name: str, model: str) -> LibraryCell:
    of = gpu(gpu_name)
    files = [file for file in cell_files() if file.gpu.name == of.name and model in file.models]
    if len(files) > 1:
        raise TraceLibraryError(duplicate_text(f"{of.name}/{model}", files[0].path, files[1].path))
    if not files:
        known = models(of.name)
        listed = f"`trace library list --gpu {of.name}` shows all {len(known)} networks"
        hint = did_you_mean(model.lower(), known, form=" ({})")
        raise TraceLibraryError(f"the library has no {of.name}/{model}{hint}; {listed}")
    return files[0].cell(model)


def cell_file(name: str) -> CellFile:
    found = find_cell(name)
    return next(file for file in files_of(found.gpu.name) if found.model in file.models)


def find_cell(name: str) -> LibraryCell:
    gpu_name, _, model = name.partition("/")
    return cell(gpu_name, model)


def match(gpu_name: str, script: WorkloadSignature) -> Match:
    """Find the published step times of a script's network, or of the most similar network, on a GPU. The batch size may differ.
    Raises TraceLibraryError."""
    return nearest_network(files_of(gpu_name), script)


def files_of(gpu_name: str) -> list[CellFile]:
    name = gpu(gpu_name).name
    return [file for file in cell_files() if file.gpu.name == name]


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower())) - {"nvidia", "tesla", "geforce", "gpu"}


def duplicate_text(name: str, first: Path, second: Path, others: int = 0) -> str:
    them = f"{name} and {others} more are" if others else f"{name} is"
    return f"{them} in two files, {first} and {second}: remove one of them, or remove its entry (trace library remove)"


def _unlisted() -> list[str]:
    failed: list[OSError] = []
    for folder in folders():
        if folder.exists() or folder != user_folder():
            for _ in os.walk(folder, onerror=failed.append):
                pass
    return [f"{error.filename}: {error.strerror}: this folder of the library is left out" for error in failed]


def _cell_paths() -> list[Path]:
    return [path for folder in folders() for path in sorted(folder.rglob(f"*{SUFFIX}")) if path.is_file()]


def _opened(path: Path) -> CellFile | TraceError:
    try:
        stat = path.stat()
    except OSError as error:
        return TraceLibraryError(f"{path}: {error.strerror}")
    return _read(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)  # a command may read the same file several times
def _read(path: Path, _changed_ns: int, _size_bytes: int) -> CellFile | TraceError:
    try:
        return read_cells(path)
    except TraceError as error:
        return error
    except OSError as error:
        return TraceLibraryError(f"{path}: {error.strerror}")

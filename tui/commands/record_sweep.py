"""Records a script at several batch sizes (`trace record --sweep`).

    $ trace record --sweep "--batch-size=1..256" train.py
    trace: batch 1: 9 steps of 12.3 ms, forward 4.1 ms
    trace: batch 2: 9 steps of 12.9 ms, forward 4.3 ms
    ...
    trace: batch 256: out of memory, which ends the sweep
    trace: wrote train.cells (1.2 KiB): v100-sxm2-16gb/train at 8 batch sizes, out of memory at 256
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from traces.format.trace_file import load
from traces.library.catalogue import gpus
from traces.library.cells import SUFFIX, write_cells
from traces.library.recorded_cells import RunOfCell, cell_of, gpu_of, step_times_of
from traces.model.trace import Trace, TraceError
from tui.commands.record import default_name, run
from tui.formatting import counted, size_text, time_text
from tui.options import RecordOptions
from tui.outputs import require_writable
from tui.running.narration import ending_text, say

_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\+(\d+))?$")
_OUT_OF_MEMORY = re.compile(rb"OutOfMemoryError|CUDA out of memory|HIP out of memory|CUBLAS_STATUS_ALLOC_FAILED")
_KEPT_BYTES = 1 << 16  # bytes to keep from the end of the script's stderr
_MOST_RUNS = 10_000


@dataclass(frozen=True)
class Sweep:
    """Contains the batch sizes to record, and the script's option for the batch size, such as "--batch-size"."""

    text: str  # the sweep as typed by the user
    before: str  # text before the value: "--batch-size=", or "--batch-size " if the value is a separate argument
    values: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Sweep:
        """Parse text such as "--batch-size=1..256", or raise TraceError."""
        at = max(text.rfind("="), text.rfind(" ")) + 1
        before, values = text[:at], _values(text[at:])
        if not before.strip(" =") or not values:
            examples = '"--batch-size=1..256" (doubling), "--batch-size=8..64+8" or "--batch-size=16,24,32"'
            raise TraceError(f"--sweep {text!r}: give an option of the script and its values, such as {examples}")
        return cls(text, before, values)

    def words(self, value: int) -> list[str]:
        name, spaced = self.before.rstrip(" "), self.before.endswith(" ")
        return [name, str(value)] if spaced else [f"{name}{value}"]


def run_sweep(record: RecordOptions) -> int:
    """Record the script at each batch size, until GPU memory runs out. Return the exit code of the command."""
    sweep = Sweep.of(record.sweep)
    output = record.output or Path(default_name(record.script)).with_suffix(SUFFIX)
    if output.suffix != SUFFIX:
        raise TraceError(f"-o {output}: `--sweep` writes a {SUFFIX} file; name it {output.with_suffix(SUFFIX).name}")
    require_writable(output)
    if output.exists():
        raise TraceError(f"{output} already exists; move it away, or give another file name with `-o`")
    measured: list[Trace] = []
    with tempfile.TemporaryDirectory(prefix="trace-sweep-") as folder:
        for number, value in enumerate(sweep.values):
            recording = Path(folder) / f"{number}.msgpack"
            script = [*record.script, *sweep.words(value)]
            with closing(_Tee()) as tee:
                one = replace(record, script=script, output=recording, grain="phase", stacks=False)
                code = run(one, stderr=tee.descriptor, is_brief=True)
            if code and _OUT_OF_MEMORY.search(tee.end):
                say(f"{' '.join(sweep.words(value))}: out of memory, which ends the sweep")
                return _write(measured, output, sweep, value) if measured else _nothing(code)
            if code:
                say(f"{' '.join(sweep.words(value))}: {ending_text(code)}, which ends the sweep", is_error=True)
                if measured:
                    _write(measured, output, sweep, None)
                return code
            if not recording.exists():
                return _nothing(2)
            trace = load(recording)
            _say_row(step_times_of(trace), value)
            measured.append(trace)
            _cells(measured, output, sweep, None)  # write the file after each run, because a later run may be killed
    return _write(measured, output, sweep, None)


def _nothing(code: int) -> int:
    say("the sweep has no results, so no file was written", is_error=True)
    return code


def _say_row(row: RunOfCell, value: int) -> None:
    total = sum(of for name, of in row.phases_ns.items() if name != "h2d")
    other = "" if row.batch == value else f" (size of the model's inputs; the script was given {value})"
    listed = f"{counted(row.steps, 'step')} of {time_text(total)}, forward {time_text(row.phases_ns['forward'])}"
    say(f"batch {row.batch}{other}: {listed}")


def _write(measured: list[Trace], output: Path, sweep: Sweep, out_of_memory: int | None) -> int:
    name, batches = _cells(measured, output, sweep, out_of_memory)
    ending = f", out of memory at {out_of_memory}" if out_of_memory is not None else ""
    say(f"wrote {output} ({size_text(output.stat().st_size)}): {name} at {counted(batches, 'batch size')}{ending}")
    say(f"next: trace library check {output}, then trace library add {output}")
    return 0


def _cells(measured: list[Trace], output: Path, sweep: Sweep, out_of_memory: int | None) -> tuple[str, int]:
    gpu = gpu_of(measured[0], gpus())
    cell = cell_of(measured, gpu, output.name.removesuffix(SUFFIX), None, {"sweep": sweep.text})
    if out_of_memory is not None and out_of_memory > cell.last_batch:
        cell = replace(cell, out_of_memory_batch=out_of_memory)
    write_cells(output, gpu, [cell], {})
    return cell.name, len(cell.batches)


def _values(text: str) -> tuple[int, ...]:
    """Parse batch sizes: "1..8" means 1, 2, 4 and 8, and "8..24+8" means 8, 16 and 24."""
    if (found := _RANGE.fullmatch(text)) is not None:
        first, last, step = int(found[1]), int(found[2]), int(found[3] or 0)
        if not 0 < first <= last or (step and (last - first) // step > _MOST_RUNS):
            return ()
        if step:
            return tuple(range(first, last + 1, step))
        doubled = []
        while first < last:
            doubled.append(first)
            first *= 2
        return (*doubled, last)
    parts = text.split(",")
    values = [int(part) for part in parts if part.isdecimal() and int(part) > 0]
    return tuple(sorted(set(values))) if len(values) == len(parts) else ()


class _Tee:
    def __init__(self) -> None:
        self._reader, self.descriptor = os.pipe()
        self.end = b""
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        while text := os.read(self._reader, 1 << 16):
            self.end = (self.end + text)[-_KEPT_BYTES:]
            sys.stderr.buffer.write(text)
            sys.stderr.flush()
        os.close(self._reader)

    def close(self) -> None:
        os.close(self.descriptor)
        self._thread.join(timeout=10)  # do not wait forever, because a background process of the script may keep the pipe open

"""Writes a file under a temporary name, and renames the file when it is complete.

    with atomic_write(Path("report.json")) as file:
        file.write(b"{}")
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file, and rename it to `path` when all data is written. Pipes and devices such as /dev/stdout are
    written without a temporary file."""
    is_file = path.is_file() or not path.exists()
    part = path.with_name(f"{path.name}.{os.getpid()}.part") if is_file else path
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            if is_file:
                os.fsync(file.fileno())
        if is_file:
            os.replace(part, path)
    except OSError as error:
        # write() does not know the name, and users do not know the temporary name
        if error.errno is not None and error.filename in (None, str(part)):
            error.filename = str(path)
        raise
    finally:
        if is_file:
            part.unlink(missing_ok=True)  # the part exists only after a failure

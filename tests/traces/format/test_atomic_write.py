"""Tests that a written file is visible only when it is complete. Device files are written directly."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from traces.format.atomic_write import atomic_write
from tui.errors import line_for


def test_a_new_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content in (b"first", b"second"):
        before = path.read_bytes() if path.exists() else None
        with atomic_write(path) as file:
            file.write(content)
            file.flush()
            assert (path.read_bytes() if path.exists() else None) == before
        assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_device_files_are_written_without_a_temporary_file() -> None:
    null = Path("/dev/null")
    with atomic_write(null) as file:
        assert Path(file.name) == null
        file.write(b"x")
    assert null.is_char_device()


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with pytest.raises(OSError) as raised, atomic_write(path):
        raise OSError(errno.ENOSPC, "No space left on device")  # file.write() raises this error without a file name
    assert line_for(raised.value) == f"{path}: No space left on device"
    assert line_for(OSError(errno.ENOSPC, "No space left on device")) == "No space left on device"


def test_a_missing_folder_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "report.json"
    with pytest.raises(FileNotFoundError) as raised, atomic_write(path):
        pass
    assert line_for(raised.value) == f"{path}: No such file or directory"

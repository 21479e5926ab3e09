"""How much memory the machine can spare for locked pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from replayer.memory.pinned import page_locks

GIB = 1 << 30
MEMINFO = f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {8 << 20} kB\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder with /proc/meminfo of 16 GiB, 8 of them available."""
    monkeypatch.setattr(page_locks, "Path", lambda path: tmp_path / path.lstrip("/"))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    return tmp_path


def limit_container(root: Path, limit_bytes: int) -> None:
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{limit_bytes}\n")
    (group / "memory.current").write_text(f"{GIB}\n")
    (group / "memory.stat").write_text(f"anon 5\nactive_file {GIB // 4}\ninactive_file {GIB // 2}\n")


def test_pinning_leaves_a_sixteenth_of_the_memory_free(machine: Path) -> None:
    assert page_locks._spare_bytes() == 7 * GIB


def test_the_file_cache_does_not_count_toward_the_limit_of_a_container(machine: Path) -> None:
    """4 GiB less 1 GiB that is used, of which 0.75 GiB can be reclaimed, less a sixteenth of the limit."""
    limit_container(machine, 4 * GIB)
    assert page_locks._spare_bytes() == int(3.5 * GIB)


def test_a_container_with_a_high_limit_can_use_all_memory_of_the_machine(machine: Path) -> None:
    limit_container(machine, 15 * GIB)
    assert page_locks._spare_bytes() == 7 * GIB


def test_available_memory_is_unknown_without_the_files_in_proc(machine: Path) -> None:
    (machine / "proc/meminfo").unlink()
    assert page_locks._spare_bytes() is None


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1 << 20, "1 MiB"),
        ((1 << 20) - 1, "1024 KiB"),
        (GIB, "1 GiB"),
        (3 * GIB // 2, "1.5 GiB"),
    ],
)
def test_sizes_are_written_in_the_largest_suitable_unit(size_bytes: int, text: str) -> None:
    assert page_locks._size(size_bytes) == text

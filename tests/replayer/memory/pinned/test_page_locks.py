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


def test_a_sixteenth_of_the_memory_stays_free(machine: Path) -> None:
    assert page_locks._spare_bytes() == 7 * GIB


def test_a_container_s_limit_counts_without_the_file_cache(machine: Path) -> None:
    """4 GiB less 1 GiB that is used, of which 0.75 GiB can be reclaimed, less a sixteenth of the limit."""
    limit_container(machine, 4 * GIB)
    assert page_locks._spare_bytes() == int(3.5 * GIB)


def test_a_container_with_a_higher_limit_has_what_the_machine_has(machine: Path) -> None:
    limit_container(machine, 15 * GIB)
    assert page_locks._spare_bytes() == 7 * GIB


def test_a_system_without_these_files_does_not_say(machine: Path) -> None:
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
def test_sizes_have_the_largest_unit_that_fits(size_bytes: int, text: str) -> None:
    assert page_locks._size(size_bytes) == text

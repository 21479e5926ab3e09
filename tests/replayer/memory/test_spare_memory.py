"""Tests how much memory the machine can spare for locked pages and for values of tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from replayer.memory import spare_memory

GIB = 1 << 30
MEMINFO = f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {8 << 20} kB\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a root folder whose /proc/meminfo shows 16 GiB, of which 8 GiB are available."""
    monkeypatch.setattr(spare_memory, "Path", lambda path: tmp_path / path.lstrip("/"))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    return tmp_path


def limit_container(
    root: Path, limit_bytes: int, folder: str = "", files: str = "memory.max memory.current", total: str = ""
) -> None:
    group = root / "sys/fs/cgroup" / folder
    group.mkdir(parents=True)
    limit, used = files.split()
    (group / limit).write_text(f"{limit_bytes}\n")
    (group / used).write_text(f"{GIB}\n")
    (group / "memory.stat").write_text(f"anon 5\n{total}active_file {GIB // 4}\n{total}inactive_file {GIB // 2}\n")


def test_pinning_leaves_a_sixteenth_of_the_memory_free(machine: Path) -> None:
    assert spare_memory.spare_host_bytes() == 7 * GIB


def test_the_file_cache_does_not_count_toward_the_limit_of_a_container(machine: Path) -> None:
    """The container has a limit of 4 GiB and uses 1 GiB, of which 0.75 GiB can be reclaimed. A sixteenth of the limit stays
    free."""
    limit_container(machine, 4 * GIB)
    assert spare_memory.spare_host_bytes() == int(3.5 * GIB)


def test_a_control_group_is_limited_by_the_groups_that_contain_it(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("0::/job/step\n")
    limit_container(machine, 4 * GIB, "job")
    limit_container(machine, 6 * GIB, "job/step")
    assert spare_memory.spare_host_bytes() == int(3.5 * GIB)


def test_memory_limits_of_control_groups_version_1_are_used(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("4:cpu:/\n3:memory:/job\n0::/\n")
    limit_container(machine, 4 * GIB, "memory/job", "memory.limit_in_bytes memory.usage_in_bytes", "total_")
    assert spare_memory.spare_host_bytes() == int(3.5 * GIB)


def test_a_container_with_a_high_limit_can_use_all_memory_of_the_machine(machine: Path) -> None:
    limit_container(machine, 15 * GIB)
    assert spare_memory.spare_host_bytes() == 7 * GIB


def test_a_machine_without_control_groups_has_no_additional_memory_limit(machine: Path) -> None:
    (machine / "proc/self/cgroup").unlink()
    assert spare_memory.spare_host_bytes() == 7 * GIB


def test_available_memory_is_unknown_without_the_files_in_proc(machine: Path) -> None:
    (machine / "proc/meminfo").unlink()
    assert spare_memory.spare_host_bytes() is None


def test_a_machine_with_nearly_full_memory_has_no_spare_memory(machine: Path) -> None:
    limit_container(machine, GIB // 8)
    assert spare_memory.spare_host_bytes() == 0

"""Allocator settings: what torch accepts is accepted, what torch refuses is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from replayer.allocator import DeviceMemory
from replayer.allocator_settings import MIB, Settings, SettingsError, parse_settings, settings_of_environment
from replayer.errors import NotEmulated, NotEmulatedWarning

TEXTS = [
    "max_split_size_mb:20",
    "max_split_size_mb:19",
    "max_split_size_mb:abc",
    "max_non_split_rounding_mb:10",
    "large_segment_size_mb:30,max_split_size_mb:29",
    "large_segment_size_mb:10",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:1.0",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[256:1,500:2]",
    "roundup_power2_divisions:[64:0,128:2,>:2], max_split_size_mb : 128",
    "expandable_segments:False",
    "expandable_segments:yes",
    "max_split_size_mb",
]


def test_torch_accepts_and_refuses_the_same() -> None:
    """GIVEN spellings right and wrong WHEN torch's own parser reads them THEN it accepts those that ours accepts.

    In a child process: torch keeps what it has read.
    """
    judge = (
        "import sys, torch\n"
        "for text in sys.argv[1:]:\n"
        "    try: torch._C._accelerator_setAllocatorSettings(text); print(1)\n"
        "    except (RuntimeError, ValueError): print(0)\n"
    )
    # large_segment_size_mb comes last, for it changes what is accepted after it
    texts = sorted(TEXTS, key=lambda text: "large_segment_size_mb:30" in text)
    judged = subprocess.run([sys.executable, "-c", judge, *texts], capture_output=True, text=True, check=True)
    for text, verdict in zip(texts, judged.stdout.split(), strict=True):
        assert accepts(text) == (verdict == "1"), text


def accepts(text: str) -> bool:
    try:
        parse_settings(text)
    except SettingsError:
        return False
    return True


def test_intervals_start_at_one_mebibyte() -> None:
    divisions = parse_settings("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").power2_divisions
    assert divisions == (1,) * 9 + (2, 4) + (8,) * 5


def test_the_first_variable_that_is_set_counts() -> None:
    both = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "max_split_size_mb:32"}
    assert settings_of_environment(both).max_split_bytes == 64 * MIB
    assert settings_of_environment({}) == Settings()


def test_settings_add_to_those_in_force() -> None:
    before = parse_settings("max_split_size_mb:64")
    assert parse_settings("garbage_collection_threshold:0.5", before).max_split_bytes == 64 * MIB


def test_what_has_no_effect_is_said_once_it_is_used() -> None:
    with pytest.warns(NotEmulatedWarning, match="expandable_segments:True has no effect on the virtual GPU"):
        DeviceMemory(0, 1 << 30, settings=parse_settings("expandable_segments:True,pinned_use_background_threads:True"))


def test_another_backend_is_refused_by_name() -> None:
    with pytest.raises(NotEmulated, match="backend:cudaMallocAsync"):
        parse_settings("backend:cudaMallocAsync")


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(SettingsError, match="'max_splt_size_mb'"):
        parse_settings("max_splt_size_mb:128")

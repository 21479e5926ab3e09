"""Tests that the allocator accepts and rejects the same settings as torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from replayer.errors import NotEmulated, NotEmulatedWarning
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.settings import (
    IGNORED,
    MIB,
    NOT_EMULATED,
    AllocatorSettings,
    SettingsError,
    parse_settings,
    settings_of_environment,
)
from replayer.memory.device.snapshot import settings_dict
from tests.forked import printed_in_fork

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
    "expandable_segments:True",
    "expandable_segments:yes",
    "pinned_use_background_threads:True",
    "pinned_use_background_threads:1",
    "pinned_max_round_threshold_mb:64",
    "pinned_max_cached_size_mb:x",
    "max_split_size_mb",
]


def test_torch_accepts_the_same_allocator_settings() -> None:
    """GIVEN valid and invalid settings WHEN torch's parser reads them THEN it accepts the settings that our parser accepts.
    The test runs in a fork, because torch keeps the settings it has read."""
    judge = (
        "import sys, torch\n"
        "for text in sys.argv[1:]:\n"
        "    try: torch._C._accelerator_setAllocatorSettings(text); print(1)\n"
        "    except (RuntimeError, ValueError): print(0)\n"
    )
    # The setting large_segment_size_mb comes last, because it changes which later settings torch accepts.
    texts = sorted(TEXTS, key=lambda text: "large_segment_size_mb:30" in text)
    for text, verdict in zip(texts, printed_in_fork(judge, *texts).split(), strict=True):
        assert accepts(text) == (verdict == "1"), text


def accepts(text: str) -> bool:
    try:
        parse_settings(text)
    except SettingsError:
        return False
    return True


def test_size_intervals_of_divisions_start_at_one_mebibyte() -> None:
    divisions = parse_settings("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").power2_divisions
    assert divisions == (1,) * 9 + (2, 4) + (8,) * 5


@pytest.mark.parametrize("exponent", range(9, 41))
def test_sizes_are_rounded_up_to_equal_parts_between_two_powers_of_two(exponent: int) -> None:
    """GIVEN a different number of parts for each of the 16 intervals THEN a size is rounded up to the end of its part. A part
    has at least 512 bytes."""
    settings = AllocatorSettings(power2_divisions=tuple(1 << (5 * interval % 7) for interval in range(16)))
    parts = settings.power2_divisions[0 if exponent < 20 else 15 if exponent > 35 else exponent - 20]
    start, length = 1 << exponent, max((1 << exponent) // parts if parts > 1 else 512, 512)
    for part in (0, 1, 2):
        end = start + part * length
        assert settings.round_up(end) == end and settings.round_up(end + length - 1) == end + length
    assert settings.round_up(start + 1) == start + length


def test_the_first_environment_variable_that_is_set_is_used() -> None:
    both = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "max_split_size_mb:32"}
    assert settings_of_environment(both).max_split_bytes == 64 * MIB
    assert settings_of_environment({}) == AllocatorSettings()


def test_new_allocator_settings_do_not_reset_the_current_settings() -> None:
    before = parse_settings("expandable_segments:True")
    assert parse_settings("garbage_collection_threshold:0.5", before).expandable_segments


def test_three_allocator_settings_return_to_their_defaults_unless_set_again() -> None:
    before = parse_settings("max_split_size_mb:64,roundup_power2_divisions:4,garbage_collection_threshold:0.5")
    assert parse_settings("", before) == AllocatorSettings()


@pytest.mark.parametrize("key", NOT_EMULATED)
def test_using_a_setting_without_effect_gives_a_warning(key: str) -> None:
    value = {"throw_on_cudamalloc_oom": "True", "expandable_segments_reserve_by_class": "[serving:0.25]"}.get(key, "64")
    with pytest.warns(NotEmulatedWarning, match=rf"{key}:.* has no effect on the virtual GPU: {NOT_EMULATED[key][:30]}"):
        DeviceMemory(0, 1 << 30, settings=parse_settings(f"{key}:{value}"))


def test_settings_without_any_effect_on_memory_are_accepted_silently() -> None:
    """GIVEN settings without any effect on memory WHEN they are set THEN no message appears and no setting changes. A
    misspelled setting is an error."""
    for key in IGNORED:
        assert parse_settings(f"{key}:True") == AllocatorSettings()
        with pytest.raises(SettingsError, match="'True' or 'False' at index 6 in ConfigTokenizer but got 'yes'"):
            parse_settings(f"max_split_size_mb:64,{key}:yes")
    assert parse_settings("pinned_num_register_threads:8,throw_on_cudamalloc_oom:False") == AllocatorSettings()
    assert parse_settings("pinned_num_register_threads:128") == AllocatorSettings()
    for wrong in ("pinned_num_register_threads:6", "pinned_num_register_threads:256", "pinned_reserve_segment_size_mb:0"):
        assert not accepts(wrong)


def test_every_allocator_setting_of_torch_is_known() -> None:
    """GIVEN the keys in torch's header file THEN our parser knows each key. The other keys of our parser exist only in later
    releases."""
    header = Path(torch.__file__).parent / "include" / "c10" / "cuda" / "CUDAAllocatorConfig.h"
    listed = header.read_text().partition("keys{")[2].partition("}")[0]
    keys = re.findall(r'"(\w+)"', re.sub(r'"\s+"', "", re.sub(r"//.*", "", listed)))
    assert "throw_on_cudamalloc_oom" in keys and "release_lock_on_cudamalloc" in keys
    values = dict.fromkeys(("throw_on_cudamalloc_oom", *IGNORED), "True")
    values |= {"backend": "native", "per_process_memory_fraction": "0.5"}
    for key in keys:
        assert accepts(f"{key}:{values.get(key, '8')}"), key


def test_another_allocator_backend_is_rejected_and_the_error_names_it() -> None:
    with pytest.raises(NotEmulated, match="backend:cudaMallocAsync"):
        parse_settings("backend:cudaMallocAsync")
    with pytest.raises(SettingsError, match="options are native and cudaMallocAsync"):
        parse_settings("backend:mine")


def test_an_unknown_allocator_setting_is_named_in_the_error() -> None:
    with pytest.raises(SettingsError, match="'max_splt_size_mb'"):
        parse_settings("max_splt_size_mb:128")


@pytest.mark.parametrize(
    ("smallest", "too_small"),
    [
        ("max_split_size_mb:20", "max_split_size_mb:19"),
        ("large_segment_size_mb:11", "large_segment_size_mb:10"),
        ("large_segment_size_mb:30,max_split_size_mb:30", "large_segment_size_mb:30,max_split_size_mb:29"),
    ],
)
def test_the_smallest_accepted_sizes_equal_those_of_torch(smallest: str, too_small: str) -> None:
    assert accepts(smallest) and not accepts(too_small)


def test_a_memory_snapshot_contains_the_settings_in_the_units_of_pytorch() -> None:
    """In a memory snapshot, segment sizes are in MiB, and the size of the largest block that is split is in bytes."""
    plain = settings_dict(parse_settings(""), "")
    assert (plain["large_segment_size_mb"], plain["max_split_size"], plain["PYTORCH_CUDA_ALLOC_CONF"]) == (20, -1, "")
    assert (plain["expandable_segments"], plain["garbage_collection_threshold"]) == (False, 0.0)
    text = "large_segment_size_mb:32,max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    given = settings_dict(parse_settings(text), text)
    assert (given["large_segment_size_mb"], given["max_split_size"], given["PYTORCH_CUDA_ALLOC_CONF"]) == (32, 64 << 20, text)
    divisions = given["roundup_power2_divisions"]
    assert isinstance(divisions, dict)
    assert [divisions[size] for size in ("1", "256", "512", "1024", "2048")] == [1, 1, 2, 4, 8]

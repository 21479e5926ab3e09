"""Reads settings of the memory allocator from environment variables such as PYTORCH_CUDA_ALLOC_CONF.

    settings = parse_settings("max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4]")
    settings.max_split_bytes  # 134217728

This module reimplements c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp of PyTorch 2.10 to 2.15.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from replayer.errors import NotEmulated, require

MIB = 1 << 20
BLOCK_BYTES = 512  # block sizes are multiples of this size
UNLIMITED = 1 << 62
POWER2_INTERVALS = 16  # one number for each power of two from 1 MiB to 64 GiB
NO_DIVISIONS = (0,) * POWER2_INTERVALS
# if several of these variables are set, the first one is used
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# these settings have no effect in a replay
IGNORED = frozenset(
    "graph_capture_record_stream_reuse pinned_free_catch_all pinned_use_background_threads pinned_use_cuda_host_register"
    " pinned_use_hip_host_register release_lock_on_cudamalloc release_lock_on_hipmalloc".split()
)
_SIZES = {
    "large_segment_size_mb": "large_segment_bytes", "max_split_size_mb": "max_split_bytes",
    "max_non_split_rounding_mb": "max_non_split_rounding_bytes",
}  # fmt: skip
_REGISTER_THREADS = 128
# how a replay differs from PyTorch for each setting
NOT_EMULATED = {
    "throw_on_cudamalloc_oom": "requests above the fraction still fail as out of memory, and only num_ooms counts them",
    "pinned_max_round_threshold_mb": "pinned memory of any size is rounded up to a power of two",
    "pinned_max_cached_size_mb": "pinned memory of any size is rounded up to a power of two and kept",
    "pinned_reserve_segment_size_mb": "pinned memory is allocated on request",
    "expandable_segments_reserve": "each segment reserves addresses for 9/8 of the device's memory",
    "expandable_segments_reserve_by_class": "each segment reserves addresses for 9/8 of the device's memory",
    "expandable_segments_min_reserve": "each segment reserves addresses for 9/8 of the device's memory",
}
# Each call resets these settings to their defaults, as in PyTorch.
_RESET: Any = {
    "max_split_bytes": UNLIMITED, "power2_divisions": NO_DIVISIONS, "garbage_collection_threshold": 0.0, "not_emulated": (),
}  # fmt: skip
_TOKEN = re.compile(r"[^\s,:\[\]]+|[,:\[\]]")
_ITEM = re.compile(r"([^:,\[\]]+):(\[[^\]]*\]|[^:,\[\]]+)(?:,|$)")


class SettingsError(ValueError):
    """Raised for an invalid setting of PyTorch's allocator."""


_require = partial(require, kind=SettingsError)


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Entry i of `power2_divisions` applies to sizes from 2^i MiB to 2^(i+1) MiB."""

    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = 20 * MIB
    large_segment_bytes: int = 20 * MIB
    power2_divisions: tuple[int, ...] = NO_DIVISIONS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    memory_fraction: float | None = None
    not_emulated: tuple[str, ...] = ()

    @property
    def has_stateless_fit(self) -> bool:
        return self.max_split_bytes == UNLIMITED and self.garbage_collection_threshold == 0

    def round_up(self, size_bytes: int) -> int:
        if self.power2_divisions is NO_DIVISIONS:
            return (size_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
        interval = min(max(size_bytes.bit_length() - MIB.bit_length(), 0), POWER2_INTERVALS - 1)
        divisions, step = self.power2_divisions[interval], BLOCK_BYTES
        if divisions > 1:
            step = max((1 << size_bytes.bit_length() - 1) // divisions, BLOCK_BYTES)
        return (size_bytes + step - 1) // step * step


def settings_of_environment(environment: Mapping[str, str] = os.environ) -> AllocatorSettings:
    """Return the allocator settings in the environment variables. Raises SettingsError or NotEmulated."""
    return next((parse_settings(environment[name]) for name in VARIABLES if name in environment), AllocatorSettings())


def parse_settings(text: str, before: AllocatorSettings | None = None) -> AllocatorSettings:
    """Read the settings in `text`. Missing settings are copied from `before`. Raises SettingsError for an invalid setting, and
    NotEmulated for the backend cudaMallocAsync."""
    settings, remaining = replace(before or AllocatorSettings(), **_RESET), re.sub(r"\s", "", text)
    while remaining:
        item = _ITEM.match(remaining)
        if item is None:
            raise SettingsError(f"Error parsing CachingAllocator settings at {remaining!r}: write key:value,key:value")
        rest = remaining[item.end() :]
        index = len(_TOKEN.findall(text)) - len(_TOKEN.findall(rest)) - 1 - bool(rest)
        settings, remaining = _with(settings, item[1], item[2], index), rest
    return settings


def _with(settings: AllocatorSettings, key: str, value: str, index: int) -> AllocatorSettings:
    if key in _SIZES:
        return _with_size(settings, key, _integer(key, value) * MIB)
    if key == "garbage_collection_threshold":
        threshold = _number(key, value)
        _require(0 < threshold < 1, "garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
        return replace(settings, garbage_collection_threshold=threshold)
    if key == "per_process_memory_fraction":
        fraction = _number(key, value)
        _require(0 <= fraction <= 1, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
        return replace(settings, memory_fraction=fraction)
    if key == "roundup_power2_divisions":
        return replace(settings, power2_divisions=_divisions(value))
    if key == "expandable_segments":
        return replace(settings, expandable_segments=_boolean(value, index))
    if key == "backend":
        _require(value in ("native", "cudaMallocAsync"), "Unknown allocator backend, options are native and cudaMallocAsync")
        if value != "native":
            raise NotEmulated(f"allocator setting backend:{value}", "only backend:native is emulated; unset it")
        return settings
    if key in IGNORED:
        _boolean(value, index)
        return settings
    if key == "pinned_num_register_threads":
        threads = _integer(key, value)
        _require(threads.bit_count() == 1, f"Number of register threads has to be power of 2, got {threads}")
        if threads > _REGISTER_THREADS:
            most = _REGISTER_THREADS
            raise SettingsError(f"Number of register threads should be less than or equal to {most}, got {threads}")
        return settings
    if key in NOT_EMULATED:
        return _without_effect(settings, key, value, index)
    raise SettingsError(f"Unrecognized key {key!r} in Accelerator allocator config.")


def _without_effect(settings: AllocatorSettings, key: str, value: str, index: int) -> AllocatorSettings:
    if key == "throw_on_cudamalloc_oom" and not _boolean(value, index):
        return settings
    if key.endswith("_mb"):
        size_mb = _integer(key, value)
        _require(key != "pinned_reserve_segment_size_mb" or size_mb, "Pinned reserve segment size has to be greater than 0")
    note = f"allocator setting {key}:{value} has no effect on the virtual GPU: {NOT_EMULATED[key]}; unset it to silence this"
    return replace(settings, not_emulated=(*settings.not_emulated, note))


def _with_size(settings: AllocatorSettings, key: str, size_bytes: int) -> AllocatorSettings:
    if key == "large_segment_size_mb":
        _require(size_bytes > 10 * MIB, "CachingAllocator option large_segment_size_mb must be > 10 MB")
    elif size_bytes < settings.large_segment_bytes:
        minimum_mb = settings.large_segment_bytes // MIB
        raise SettingsError(f"CachingAllocator option {key} too small, must be >= {minimum_mb}")
    changed: dict[str, Any] = {_SIZES[key]: min(size_bytes, UNLIMITED)}
    return replace(settings, **changed)


def _divisions(value: str) -> tuple[int, ...]:
    if not value.startswith("["):
        return (_power_of_two(value, "divisions has"),) * POWER2_INTERVALS
    divisions, last = [0] * POWER2_INTERVALS, None
    for pair in filter(None, value[1:-1].split(",")):
        boundary, _, number_text = pair.partition(":")
        number = _power_of_two(number_text, "divisions has") if number_text != "0" else 0
        if boundary == ">":
            first = 0 if last is None else last
            divisions[first + 1 :] = [number] * (POWER2_INTERVALS - first - 1)
            continue
        index = min(_power_of_two(boundary, "intervals have").bit_length() - 1, POWER2_INTERVALS - 1)
        if last is None:
            divisions[:index] = [number] * index
        divisions[index] = number
        last = index
    return tuple(divisions)


def _power_of_two(text: str, what: str) -> int:
    number = _integer("roundup_power2_divisions", text)
    _require(number.bit_count() == 1, f"For roundups, the {what} to be power of 2 ")
    return number


def _boolean(value: str, index: int) -> bool:
    _require(value in ("True", "False"), f"Expected 'True' or 'False' at index {index} in ConfigTokenizer but got {value!r}")
    return value == "True"


def _integer(key: str, text: str) -> int:
    _require(text.isdecimal(), f"allocator setting {key} needs a whole number, not {text!r}")
    return int(text)


def _number(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise SettingsError(f"allocator setting {key} needs a number, not {text!r}") from error
    _require(math.isfinite(number), f"allocator setting {key} needs a finite number, not {text!r}")
    return number

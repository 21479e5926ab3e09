"""The allocator's settings, as PYTORCH_CUDA_ALLOC_CONF (PYTORCH_HIP_ALLOC_CONF, PYTORCH_ALLOC_CONF) spells them.

What changes which bytes are reserved is honoured, refused by name, or named in `not_emulated`; nothing is guessed.

    settings = parse_settings("max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4]")
    settings.max_split_bytes  # 134217728

    honoured          max_split_size_mb, max_non_split_rounding_mb, large_segment_size_mb, roundup_power2_divisions,
                      garbage_collection_threshold, per_process_memory_fraction, backend:native
    not emulated      expandable_segments: allocated bytes stay exact, but reserved bytes and the point of running out
                      are those of plain segments. throw_on_cudamalloc_oom: the same request fails, as out of memory
    refused           backend:cudaMallocAsync, whose figures follow other rules
    of no consequence pinned_*, release_lock_on_*, graph_capture_record_stream_reuse, expandable_segments_reserve*

Ranges and messages are those of c10/core/AllocatorConfig.cpp, so that a typo fails here as it would on the GPU.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from replayer.errors import NotEmulated

MIB = 1 << 20
BLOCK_BYTES = 512  # the least block; block sizes are multiples of it
UNLIMITED = 1 << 62
POWER2_INTERVALS = 16  # one per power of two from 1 MiB to 64 GiB
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the first that is set counts

_FREE_OF_CONSEQUENCE = re.compile(
    r"pinned_\w+|release_lock_on_(cuda|hip)malloc|graph_capture_record_stream_reuse|expandable_segments_reserve\w*"
)
_ITEM = re.compile(r"([^:,\[\]]+):(\[[^\]]*\]|[^:,\[\]]+)(?:,|$)")


class SettingsError(ValueError):
    """A setting that PyTorch refuses too."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`power2_divisions[i]` rounds requests of the i-th power of two from 1 MiB on; 0 and 1 do nothing."""

    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = 20 * MIB
    large_segment_bytes: int = 20 * MIB
    power2_divisions: tuple[int, ...] = (0,) * POWER2_INTERVALS
    garbage_collection_threshold: float = 0.0
    memory_fraction: float | None = None
    not_emulated: tuple[str, ...] = ()  # one line per key that was given and has no effect here

    @property
    def are_plain(self) -> bool:
        """Whether every request is rounded, fitted and split by the fixed rules."""
        return (
            self.max_split_bytes == UNLIMITED
            and max(self.power2_divisions) <= 1
            and self.garbage_collection_threshold == 0
        )

    def round_up(self, size_bytes: int) -> int:
        """The block for a request: a multiple of 512, or the next of `divisions` steps between two powers of two."""
        interval = min(max(size_bytes.bit_length() - MIB.bit_length(), 0), POWER2_INTERVALS - 1)
        divisions = self.power2_divisions[interval]
        if divisions > 1 and size_bytes > BLOCK_BYTES * divisions:
            step = (1 << size_bytes.bit_length() - 1) // divisions
        else:
            step = BLOCK_BYTES
        return (size_bytes + step - 1) // step * step


def settings_of_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings that PyTorch would read at the first allocation. Raises SettingsError or NotEmulated."""
    return next((parse_settings(environment[name]) for name in VARIABLES if name in environment), Settings())


def parse_settings(text: str, before: Settings | None = None) -> Settings:
    """`before`, changed as `text` says.

    Raises SettingsError for what PyTorch refuses too, NotEmulated for another backend.
    """
    settings, rest = replace(before or Settings(), not_emulated=()), re.sub(r"\s", "", text)
    while rest:
        item = _ITEM.match(rest)
        if item is None:
            raise SettingsError(f"Error parsing CachingAllocator settings at {rest!r}: write key:value,key:value")
        settings, rest = _with(settings, *item.groups()), rest[item.end() :]
    return settings


def _with(settings: Settings, key: str, value: str) -> Settings:
    if key in ("large_segment_size_mb", "max_split_size_mb", "max_non_split_rounding_mb"):
        return _with_size(settings, key, _whole(key, value) * MIB)
    if key == "garbage_collection_threshold":
        threshold = _number(key, value)
        if not 0 < threshold < 1:
            raise SettingsError("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
        return replace(settings, garbage_collection_threshold=threshold)
    if key == "per_process_memory_fraction":
        fraction = _number(key, value)
        if not 0 <= fraction <= 1:
            raise SettingsError("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
        return replace(settings, memory_fraction=fraction)
    if key == "roundup_power2_divisions":
        return replace(settings, power2_divisions=_divisions(value))
    if key in ("expandable_segments", "throw_on_cudamalloc_oom"):
        if value not in ("True", "False"):
            raise SettingsError(f"Expected 'True' or 'False' for {key} but got {value!r}")
        note = f"{key}:True has no effect on the virtual GPU, whose segments are plain ones; unset it to silence this"
        return replace(settings, not_emulated=(*settings.not_emulated, note)) if value == "True" else settings
    if key == "backend":
        if value != "native":
            raise NotEmulated(f"allocator setting backend:{value}", "only backend:native is; unset it")
        return settings
    if _FREE_OF_CONSEQUENCE.fullmatch(key):
        return settings
    raise SettingsError(f"Unrecognized key {key!r} in CUDA allocator config.")


def _with_size(settings: Settings, key: str, size_bytes: int) -> Settings:
    if key == "large_segment_size_mb":
        if size_bytes <= 10 * MIB:
            raise SettingsError("CachingAllocator option large_segment_size_mb must be > 10 MB")
        return replace(settings, large_segment_bytes=size_bytes)
    if size_bytes < settings.large_segment_bytes:
        least = settings.large_segment_bytes // MIB
        raise SettingsError(f"CachingAllocator option {key} too small, must be >= {least}")
    size_bytes = min(size_bytes, UNLIMITED)
    if key == "max_split_size_mb":
        return replace(settings, max_split_bytes=size_bytes)
    return replace(settings, max_non_split_rounding_bytes=size_bytes)


def _divisions(value: str) -> tuple[int, ...]:
    """One number for all sizes, or a list of BOUNDARY_MB:DIVISIONS; `>` stands for all sizes beyond the last."""
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
    number = _whole("roundup_power2_divisions", text)
    if number.bit_count() != 1:
        raise SettingsError(f"For roundups, the {what} to be power of 2 ")
    return number


def _whole(key: str, text: str) -> int:
    if not text.isdecimal():
        raise SettingsError(f"allocator setting {key} needs a whole number, not {text!r}")
    return int(text)


def _number(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise SettingsError(f"allocator setting {key} needs a number, not {text!r}") from error
    if not math.isfinite(number):
        raise SettingsError(f"allocator setting {key} needs a finite number, not {text!r}")
    return number

"""Lists all segments and blocks of a GPU in the format of `torch.cuda.memory._snapshot()`.

    snapshot = memory.snapshot()
    snapshot[0]["blocks"][0]   # {"address": ..., "size": 3145728, "state": "active_allocated", "frames": [...], ...}

The dictionary keys come from PyTorch's torch/csrc/cuda/Module.cpp.
"""

from __future__ import annotations

from typing import TypedDict

from replayer.memory.device.blocks import Block, ExpandablePool, Unmapped, pool_of, stream_of
from replayer.memory.device.history import History, StackFrame
from replayer.memory.device.settings import MIB, UNLIMITED, AllocatorSettings


def mapped_ranges(tail: Block) -> list[list[Block]]:
    """Split a segment's blocks into one list for each range of mapped memory. `tail` is the segment's last block."""
    ranges: list[list[Block]] = [[]]
    at: Block | None = tail
    while at is not None:
        if type(at) is Unmapped:
            ranges.append([])
        else:
            ranges[-1].append(at)
        at = at.prev
    return [blocks[::-1] for blocks in reversed(ranges) if blocks]


class BlockDict(TypedDict):
    address: int
    size: int
    requested_size: int
    state: str
    frames: list[StackFrame]


class SegmentDict(TypedDict):
    device: int
    address: int
    total_size: int
    allocated_size: int
    active_size: int
    requested_size: int
    stream: int
    segment_type: str
    segment_pool_id: tuple[int, int]
    is_expandable: bool
    frames: list[StackFrame]
    blocks: list[BlockDict]


def segment_dict(blocks: list[Block], device: int, history: History | None) -> SegmentDict:
    pool = blocks[0].pool
    active = [block for block in blocks if not block.in_pool]
    return {
        "device": device,
        "address": blocks[0].address,
        "total_size": sum(block.size_bytes for block in blocks),
        "allocated_size": sum(block.size_bytes for block in blocks if block.in_use),
        "active_size": sum(block.size_bytes for block in active),
        "requested_size": sum(block.requested_bytes for block in active),
        "stream": stream_of(pool.stream),
        "segment_type": "small" if pool.small else "large",
        "segment_pool_id": (0, pool_of(pool.stream)),
        "is_expandable": isinstance(pool, ExpandablePool),
        "frames": [],
        "blocks": [_block_dict(block, history) for block in blocks],
    }


def _block_dict(block: Block, history: History | None) -> BlockDict:
    state = "active_allocated" if block.in_use else "inactive" if block.in_pool else "active_awaiting_free"
    return {
        "address": block.address,
        "size": block.size_bytes,
        "requested_size": 0 if block.in_pool else block.requested_bytes,
        "state": state,
        "frames": history.frames_at(block.address) if history is not None and block.in_use else [],
    }


def settings_dict(settings: AllocatorSettings, text: str) -> dict[str, str | int | float | dict[str, int]]:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": text,
        "max_split_size": -1 if settings.max_split_bytes == UNLIMITED else settings.max_split_bytes,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << i): divisions for i, divisions in enumerate(settings.power2_divisions)},
        "graph_capture_record_stream_reuse": False,
        "large_segment_size_mb": settings.large_segment_bytes // MIB,
    }

"""PyTorch's caching allocator for device memory, reimplemented: blocks, segments, settings, statistics, snapshots.

`caching_allocator.DeviceMemory` is the memory of one device. This package does not use torch or tensors.
"""

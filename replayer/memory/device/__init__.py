"""PyTorch's caching allocator for device memory, reimplemented: blocks, segments, settings, statistics, snapshots.

`caching_allocator.DeviceMemory` is the memory of one device. It knows neither torch nor tensors.
"""

"""A reimplementation of PyTorch's caching allocator for device memory.

`caching_allocator.DeviceMemory` is the memory of one device.
"""

"""Provides a reimplementation of PyTorch's caching allocator for GPU memory. `caching_allocator.DeviceMemory` represents the
memory of one GPU."""

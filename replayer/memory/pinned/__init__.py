"""Pinned host memory: PyTorch's host allocator over memory that is really locked.

`host_memory.HostMemory` is that of this process.
"""

"""Pinned host memory. PyTorch's host allocator is reimplemented, and its memory is really page-locked.

`host_memory.HostMemory` manages the pinned memory of this process.
"""

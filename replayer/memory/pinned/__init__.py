"""Provides pinned host memory. `host_memory.HostMemory` manages the pinned memory of a process."""

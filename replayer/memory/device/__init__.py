"""Reimplements PyTorch's caching allocator for GPU memory."""

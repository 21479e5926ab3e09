"""Device memory of virtual tensors.

`tensor_allocator.TensorAllocator` serves tensors. `device.caching_allocator` decides which block a request gets and when memory
runs out, and `rerun_requests` finds the largest batch that fits on a GPU.
"""

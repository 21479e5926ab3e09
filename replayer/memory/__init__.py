"""Device memory of virtual tensors.

`tensor_allocator.TensorAllocator` allocates memory for tensors. `device.caching_allocator` chooses a block for each request and
detects when memory runs out.
"""

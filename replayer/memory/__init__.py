"""Provides the emulated memory of virtual GPUs. `tensor_allocator.TensorAllocator` allocates memory for tensors.
`device.caching_allocator` reimplements PyTorch's caching allocator."""

"""Composite ops that PyTorch decomposes differently on CUDA and on a CPU. For virtual tensors, this package chooses the same
decomposition as CUDA."""

"""Decomposes composite ops on virtual tensors as PyTorch does on CUDA. PyTorch decomposes some composite ops differently on a
CPU and on CUDA."""

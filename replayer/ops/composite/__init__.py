"""Splits composite ops on virtual tensors into the same simpler ops as PyTorch does on CUDA."""

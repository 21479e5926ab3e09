"""Splits composite ops on virtual tensors into the same simpler ops as PyTorch does on CUDA. PyTorch splits some composite ops
differently on a CPU and on CUDA."""

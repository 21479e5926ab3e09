"""Splits composite PyTorch ops into the same simpler ops as on CUDA."""

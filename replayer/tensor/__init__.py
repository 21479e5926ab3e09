"""Provides virtual tensors, which have a shape and GPU memory but no values."""

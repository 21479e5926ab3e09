"""Stores the known values of virtual tensors, and computes new values from known values."""

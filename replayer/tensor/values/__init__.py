"""Keeps the values of virtual tensors that are known, and computes the results of ops on known values."""

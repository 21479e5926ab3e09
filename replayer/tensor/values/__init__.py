"""Stores known values of virtual tensors, and computes the results of ops on known values."""

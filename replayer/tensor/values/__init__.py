"""Stores the values of virtual tensors if they are known, and computes new values from them."""

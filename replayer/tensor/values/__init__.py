"""Tracks the values of virtual tensors that the host knows, and computes further values from known ones."""

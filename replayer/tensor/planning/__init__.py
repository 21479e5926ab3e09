"""Infers the shapes of virtual tensors, and caches the inferred shapes."""

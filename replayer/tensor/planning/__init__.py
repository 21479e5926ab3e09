"""Infers the shapes of virtual tensors, and caches the inferred shapes. `results` creates an op's results from the cached
shapes."""

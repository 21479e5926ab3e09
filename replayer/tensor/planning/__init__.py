"""Infers the shapes of virtual tensors, and caches the inferred shapes. The module `results` creates the result tensors of an
op from the cached shapes."""

"""Provides virtual tensors, which have a shape and GPU memory but no values. The module `dispatch` runs ops on virtual tensors.
The module `generators` provides the random generators of virtual GPUs."""

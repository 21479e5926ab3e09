"""Virtual tensors, which have a shape and GPU memory but no values, and the random generators of virtual GPUs. The module
`dispatch` runs ops on virtual tensors."""

"""What the host knows about the values of virtual tensors, and the results that follow from it."""

"""What the host knows of the values of virtual tensors, and which results follow from it."""

"""Compiled code in a trace: regions of torch.compile and launches of CUDA graphs."""

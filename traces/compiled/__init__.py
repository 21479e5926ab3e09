"""Analyses compiled code in a trace: regions of torch.compile, graph breaks and launches of CUDA graphs."""

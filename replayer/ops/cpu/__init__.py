"""CPU kernels and handlers for `--values compute`, which computes ops on tensor values in host memory."""

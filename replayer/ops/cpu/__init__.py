"""Computes the values of tensors on the CPU for the option `--values compute`."""

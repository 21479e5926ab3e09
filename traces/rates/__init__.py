"""Compares the FLOP/s and bytes per second of recorded ops with the GPU's data sheet."""

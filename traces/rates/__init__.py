"""Compares the speed of recorded ops (FLOP/s and bytes per second) with the GPU's data sheet."""

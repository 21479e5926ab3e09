"""Computes when each op and each kernel begins and ends. `simulator` executes ops, `matcher` finds the recorded call of an op,
and `scheduler` adds kernels to CUDA streams."""

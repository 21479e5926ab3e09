"""Computes when each op and each kernel begins and ends. The module `simulator` is the entry point: `matcher` finds the
recorded call of an op for it, and `scheduler` adds the kernels to CUDA streams."""

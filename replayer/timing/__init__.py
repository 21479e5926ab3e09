"""Computes when each op and each kernel begins and ends. The module `simulator` is the entry point. `matcher` finds the
recorded calls of ops, and `scheduler` adds kernels to CUDA streams."""

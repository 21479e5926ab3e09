"""Runs compiled code on the virtual GPU.

The module `backend` replaces Inductor. The module `regions` launches the recorded kernels of a compiled region or runs its ops
one by one.
"""

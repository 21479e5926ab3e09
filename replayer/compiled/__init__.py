"""Runs code that torch.compile has compiled on the virtual GPU.

The module `backend` replaces PyTorch's compiler Inductor. The module `regions` launches the recorded kernels of compiled code.
"""

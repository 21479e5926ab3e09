"""Runs compiled functions (torch.compile) on the virtual GPU. The module `backend` replaces PyTorch's compiler Inductor. The
module `regions` launches the recorded kernels of compiled code."""

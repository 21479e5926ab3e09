"""Runs compiled functions (torch.compile) on the virtual GPU. The module `backend` replaces PyTorch's compiler Inductor."""

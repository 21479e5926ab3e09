"""Runs functions compiled with torch.compile on the virtual GPU. The module `backend` replaces Inductor, PyTorch's compiler."""

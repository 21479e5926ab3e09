"""Decomposes composite ops on virtual tensors as PyTorch does on CUDA. PyTorch decomposes some composite ops differently on a
CPU and on CUDA. The module `rnn` runs recurrent layers, and the module `losses` runs loss functions."""

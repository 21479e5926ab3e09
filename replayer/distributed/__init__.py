"""Emulates process groups between virtual GPUs. The class `process_group.VirtualNccl` replaces PyTorch's NCCL process group."""

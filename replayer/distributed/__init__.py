"""Emulates process groups between virtual GPUs. The class `process_group.VirtualNccl` replaces PyTorch's NCCL process group.
The module `store_exchange` exchanges messages between ranks and detects deadlocks."""

"""Emulates process groups between virtual GPUs.

The class `process_group.VirtualNccl` is the process group that PyTorch uses. The module `store_exchange` exchanges messages
between ranks and detects deadlocks.
"""

"""Emulates process groups between virtual GPUs.

PyTorch uses the class `process_group.VirtualNccl` in place of its NCCL process group. The module `store_exchange` exchanges
messages between ranks and detects deadlocks.
"""

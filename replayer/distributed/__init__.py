"""Process groups between virtual GPUs. Ranks exchange messages with virtual times through the process group's key-value store.

`process_group.VirtualNccl` is the group that torch sees. `store_exchange` waits for the messages of the other ranks and detects
deadlocks.
"""

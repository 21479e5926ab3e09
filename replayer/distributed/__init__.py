"""Process groups between virtual GPUs. Ranks exchange messages with virtual times through the group's store.

`process_group.VirtualNccl` is the group that torch sees. `group_operations` runs a call, `store_exchange` waits for the other
ranks and finds ranks that wait for each other, and `reductions` has NCCL's rules.
"""

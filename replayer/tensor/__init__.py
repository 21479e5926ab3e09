"""Virtual tensors, which have a shape and GPU memory but no values, and the random generators of virtual GPUs. `dispatch` runs
one op on them."""

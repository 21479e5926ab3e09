"""Tensors without values: class, storage, metadata and random generators. `dispatch` runs one op on them."""

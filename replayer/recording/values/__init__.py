"""Provides the values that a script reads from GPU tensors, such as the loss. Tensors of a replay have no contents, so values
come from the recording or are assumed."""

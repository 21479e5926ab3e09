"""Provides the values that a script reads from GPU tensors, such as the loss."""

"""Values that a script reads from GPU tensors, such as the loss. A replay has no tensor contents, so the values are taken from
the recording or assumed."""

"""Values that a script reads from GPU tensors, such as the loss. Tensors of a replay have no contents, so values that a script
reads are taken from the recording or assumed."""

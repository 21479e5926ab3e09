"""Records CUDA events at the start and end of training steps and phases."""

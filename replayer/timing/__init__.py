"""Computes the start and end times of the ops and kernels of a replay. The entry point is `simulator`."""

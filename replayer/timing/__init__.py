"""Computes when each op and each kernel of a replay starts and ends. The entry point is `simulator`."""

"""Computes statistics of one trace, such as step times, GPU busy time, phase times and memory."""

"""Composite ops that CUDA decomposes differently from a CPU. This package chooses CUDA's decomposition above the dispatcher."""

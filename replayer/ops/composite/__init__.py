"""Composite ops that CUDA decomposes differently from a CPU. The choice is made here, above the dispatcher."""

"""Composite ops that CUDA takes apart in another way than a CPU: each choice is made here, above the dispatcher."""

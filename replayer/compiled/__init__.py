"""Runs compiled code on the virtual GPU.

`backend` takes the place of Inductor, and `regions` gives each region its recorded kernels or runs its ops one by one.
"""

"""Emulates CUDA devices with their streams, events, launches and values, and counts the script's steps.

`virtual_gpu.VirtualGpu` creates one object per module. Callers use the objects of the VirtualGpu directly.
"""

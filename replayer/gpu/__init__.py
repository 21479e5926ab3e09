"""The virtual GPU in parts: devices, current streams, launches, streams and events, values, steps, ranks, profiles.

`virtual_gpu.VirtualGpu` creates these parts. Callers use the parts directly.
"""

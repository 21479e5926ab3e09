"""The virtual GPU in parts: devices, current streams, launches, streams and events, values, steps, ranks, profiles.

`virtual_gpu.VirtualGpu` makes them and holds them. What calls the GPU calls the part that does the work.
"""

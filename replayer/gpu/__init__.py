"""The virtual GPU: devices, current streams, launches, streams and events, values, steps, ranks and profiles.

`virtual_gpu.VirtualGpu` creates one object per module. Callers use these objects directly.
"""

"""Records CUDA events at the boundaries of steps and phases, and decides when CUDA may be called safely.

`DeviceAccess` decides whether the recorder may call CUDA now. `BoundaryEvents` records events and reads them after the GPU has
passed them. The host never waits for the GPU.
"""

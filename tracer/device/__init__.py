"""Records CUDA events at the boundaries of steps and phases.

`DeviceAccess` decides whether the recorder may call CUDA now. `BoundaryEvents` records CUDA events, and reads their times
without waiting for the GPU.
"""

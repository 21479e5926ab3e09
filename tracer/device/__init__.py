"""Records CUDA events at the boundaries of steps and phases, and decides when the recorder may safely call CUDA.

`DeviceAccess` decides whether the recorder may call CUDA now. `BoundaryEvents` records CUDA events and reads their times after
the GPU has reached them. The host never waits for the GPU.
"""

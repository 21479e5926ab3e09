"""Records CUDA events at the start and end of training steps and phases. `DeviceAccess` decides whether the recorder may call
CUDA now. `BoundaryEvents` records CUDA events, and reads their times without waiting for the GPU."""

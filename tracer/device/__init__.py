"""CUDA events at the boundaries of steps and phases, and the rules for calling CUDA safely.

`device_access.DeviceAccess` decides whether the recorder may call CUDA now. `boundary_events.BoundaryEvents` takes events and
reads them when the GPU has passed them; the host never waits.
"""

"""The recorder, in the script's process.

`recorder.Recorder` is called by the patched PyTorch functions. `schedule` decides which steps are profiled, `step_recorder`
records a CUDA event at each phase boundary, and `recording_writer` writes the file. `own_cost` measures the overhead.
"""

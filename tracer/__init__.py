"""Records GPU training in the script's process. The patched PyTorch functions call `recorder.Recorder`, and `schedule` decides
which steps are profiled. `step_recorder` records a CUDA event at each phase boundary, and `recording_writer` writes the file.
"""

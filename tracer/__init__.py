"""Records GPU training in the script's process. `recorder.Recorder` gets calls from the patched PyTorch functions, and
`schedule` decides which steps are profiled. `step_recorder` records a CUDA event at each phase boundary, and `recording_writer`
writes the file."""

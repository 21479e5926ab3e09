"""The recorder, in the script's process.

`recorder.Recorder` receives the calls of patched torch functions, `schedule` decides which steps are profiled, `step_recorder`
takes a CUDA event at each phase boundary, and `recording_writer` writes the rows. `own_cost` measures the overhead.
"""

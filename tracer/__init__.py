"""Records GPU training in the script's process. The patched PyTorch functions call `recorder.Recorder`. The module `schedule`
decides which steps are profiled."""

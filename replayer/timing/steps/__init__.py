"""Tracks the script's step, phase and nn.DataParallel stage in the recording. `StepTracker` is the entry point."""

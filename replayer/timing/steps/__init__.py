"""Tracks the script's step, phase and nn.DataParallel stage in the recording. `step_tracker.StepTracker` is the entry point.
"""

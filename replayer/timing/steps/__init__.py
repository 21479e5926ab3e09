"""Tracks the script's position in the recording: step, phase, and stage of nn.DataParallel.

`step_tracker.StepTracker` follows the script.
"""

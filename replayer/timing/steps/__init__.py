"""Where the script is in the recording: its step, its phase, and its stage of nn.DataParallel.

`step_tracker.StepTracker` follows the script.
"""

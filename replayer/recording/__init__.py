"""The recording, prepared for a replay.

`indexer` finds the step, phase and op of each kernel, `recorded_run.RecordedRun` is the result, and `match_keys` decides which
recorded calls an op can match. `library_pace` takes times from the library instead of a recording.
"""

"""The recording, prepared for a replay.

`indexer` finds the step, phase and op of each kernel, and `match_keys` decides which recorded calls an op can match.
`library_pace` reads published step times from the library instead of a recording.
"""

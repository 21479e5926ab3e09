"""The recording, prepared for a replay.

`indexer` finds the step, phase and op of each kernel. `match_keys` makes the keys that match an op to recorded calls.
`library_pace` reads published step times from the library instead of a recording.
"""

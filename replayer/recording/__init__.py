"""Provides the recording for a replay. `indexer` finds the step, phase and op of each kernel. `match_keys` finds recorded calls
with the shapes of an op. The module `library_pace` reads published step times of measured models."""

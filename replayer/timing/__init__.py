"""Decides when the script's work runs on the virtual timeline.

`simulator.Simulator` plays ops, `matcher` chooses the recorded call of an op, `scheduler` puts work on streams, and
`timing_rules` computes start and end. `steps` tracks the script's step and phase, and `timeline` writes the result.
"""

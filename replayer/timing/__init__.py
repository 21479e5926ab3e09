"""Computes when each op of the script and each kernel begins and ends.

The modules: `simulator` executes ops, `matcher` finds the recorded call of an op, `scheduler` adds kernels to streams, and
`timing_rules` computes start and end times. The package `steps` tracks the script's current step and phase, and the package
`timeline` writes the output file.
"""

"""Compares the FLOP/s and bytes per second of recorded ops with the GPU's data sheet. `op_cost.py` computes the FLOPs of an op.
`op_traffic.py` computes the bytes that an op reads and writes. `achieved_rates.py` divides the FLOPs and bytes of ops by their
recorded durations. `estimate_errors.py` contains the measured errors of estimated step times."""

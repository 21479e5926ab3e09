"""Compute FLOPs and bytes of ops, and compare the achieved rates with the GPU's data sheet.

`op_cost.py` and `op_traffic.py` compute FLOPs and bytes from shapes and element types. `achieved_rates.py` divides FLOPs and
bytes by recorded times. `estimate_errors.py` has the measured errors of estimates.
"""

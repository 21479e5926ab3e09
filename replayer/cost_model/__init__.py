"""Estimates durations that were not recorded. Every number behind an estimate is in `constants.py`.

`op_costs.OpCosts` estimates ops, `copy_costs.CopyCosts` estimates copies, and `collective_costs.CollectiveCosts` estimates
operations between ranks.
"""

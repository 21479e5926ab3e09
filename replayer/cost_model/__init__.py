"""Estimates durations that were not recorded.

`op_costs.OpCosts` estimates ops, `copy_costs.CopyCosts` estimates copies, and `collective_costs.CollectiveCosts` estimates
collective operations.
"""

"""Estimates durations that were not recorded. All numeric constants that estimates use are in `constants.py`.

`op_costs.OpCosts` estimates the durations of ops, `copy_costs.CopyCosts` those of copies, and
`collective_costs.CollectiveCosts` those of collectives.
"""

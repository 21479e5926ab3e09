"""Estimates durations that were not recorded. `op_costs.OpCosts` estimates the durations of ops, and `copy_costs.CopyCosts` the
durations of copies. `collective_costs.CollectiveCosts` estimates the durations of collective operations."""

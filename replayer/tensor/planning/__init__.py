"""The plan cache learns once what an op does to virtual tensors, and then looks it up.

`plan_cache.PlanCache` is the cache, `shape_inference` learns plans, and `results` creates a call's results from a plan.
"""

"""The plan cache: what an op does to virtual tensors is learned once and then looked up.

`plan_cache.PlanCache` is the cache, `shape_inference` learns, `results` makes a call's results from a plan.
"""

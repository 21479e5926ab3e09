"""Infers the shapes of virtual tensors, and caches the inferred shapes.

The class `plan_cache.PlanCache` caches the results of the module `shape_inference`. The module `results` creates the result
tensors of an op from the cached shapes.
"""

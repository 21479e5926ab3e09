"""Shape inference for virtual tensors, and a cache of its results.

The class `plan_cache.PlanCache` caches the results of the module `shape_inference`, and the module `results` creates tensors
from cached results.
"""

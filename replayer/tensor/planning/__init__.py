"""Shape inference for virtual tensors, and a cache of its results.

The class `plan_cache.PlanCache` is the cache, the module `shape_inference` fills it, and the module `results` creates result
tensors.
"""

"""Prints Dynamo's counters of a compiled program as one line of JSON."""

import json
import os

from torch._dynamo.utils import counters

KINDS = ("frames", "graph_break", "stats", "unimplemented")


def print_counters() -> None:
    """Only rank 0 prints."""
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"counters": {kind: dict(counters[kind]) for kind in KINDS}}), flush=True)

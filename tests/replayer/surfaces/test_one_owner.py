"""Tests that only one surface replaces each name of torch. The test runs in a new interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import importlib, json, sys, warnings
import torch
warnings.simplefilter("ignore")  # looking at a deprecated name warns
for module in ("torch.distributed._functional_collectives", "torch.utils._foreach_utils"):
    importlib.import_module(module)
from replayer import backend, state
from replayer.surfaces import refuse_c_functions, surfaces
from replayer.tensor.tensor import VirtualTensor
from tests.replayer.fake_gpu import SurfaceGpu

state.start(SurfaceGpu)
backend.register()

def namespaces():
    for key, module in list(sys.modules.items()):
        if key.partition(".")[0] == "torch":
            yield key, vars(module)
            for name, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == key:
                    yield f"{key}.{name}", vars(value)
    yield "VirtualTensor", vars(VirtualTensor)

def held():
    return {f"{owner}.{name}": value for owner, names in namespaces() for name, value in list(names.items())}

installers = [(surface.__name__, surface.install) for surface in surfaces()]
refuse_c_functions(torch)  # what no surface knows: each may replace it
before, owners = held(), {}
for name, install in installers:
    install(torch)
    now = held()
    for key, value in now.items():
        if key not in before or before[key] is not value:
            owners.setdefault(key, []).append(name)
    before = now
print(json.dumps(owners))
"""


@pytest.mark.program
def test_no_torch_function_is_patched_by_two_modules() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    owners = json.loads(done.stdout)
    assert owners["torch._C._cuda_getCublasWorkspaceSize"] == ["replayer.surfaces.torch_cuda_memory"]
    assert {name: of for name, of in owners.items() if len(of) > 1} == {}

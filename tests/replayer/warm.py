"""Runs each test in a fork of this warm interpreter, which has all surfaces installed.

Patches of torch are global, so tests of patched torch cannot run in pytest's process. An import of torch takes seconds, so
each test cannot have a new process either. `conftest.py` starts this file once and sends one line for each test. The answer
is a traceback or an empty text.

    {"file": ".../test_torch_cuda.py", "test": "test_names", "arguments": {"device": 1}}
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import resource
import signal
import sys
import traceback
import warnings
from pathlib import Path

TEST_SECONDS = 300  # This limit is generous, because machines that run tests may be busy.
COMPUTING_SECONDS = 60  # This is processor time. Only a test with an endless loop needs more.


def run(file: str, test: str, arguments: dict[str, object]) -> str:
    """Run one test, and return the traceback if the test fails, or "" if it passes."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # With this entry, pickle finds the classes of the module.
    try:
        spec.loader.exec_module(module)
        getattr(module, test)(**arguments)
    except BaseException:
        return traceback.format_exc()
    return ""


def in_fork(request: dict[str, object]) -> str:
    """Run one test in a child process, and return the result. If the child process dies, return an error."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        signal.alarm(TEST_SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (COMPUTING_SECONDS, COMPUTING_SECONDS + 1))
        answer = run(**request)  # type: ignore[arg-type]
        with os.fdopen(writer, "w") as out:
            json.dump({"failure": answer}, out)
        sys.stderr.flush()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    _, status = os.waitpid(child, 0)
    if not text and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU):
        return f"the test did not end within {TEST_SECONDS} s, or computed for {COMPUTING_SECONDS} s"
    return json.loads(text)["failure"] if text else f"the test's process ended with status {status}"


def main() -> None:
    import pytest  # noqa: F401
    import torch

    from replayer import backend, state
    from replayer.surfaces import install_all
    from tests.replayer.fake_gpu import SurfaceGpu
    from traces.script.patching import temporarily_set

    answers = os.dup(1)
    os.dup2(2, 1)  # Output of a test must not be read as an answer.
    state.start(SurfaceGpu)  # type: ignore[arg-type]
    backend.register()
    install_all(torch)
    # Inductor of PyTorch 2.10 to 2.12 asks whether CUDA is available. Without this patch, CUDA would have one GPU in all
    # tests.
    with temporarily_set(torch.cuda, is_available=lambda: True):
        # These modules are imported by many tests, or by torch when it first computes the shape of a result.
        import hypothesis  # noqa: F401
        import torch._dynamo
        import torch._inductor.cudagraph_trees
        import torch.distributed.tensor

        import replayer.gpu.virtual_gpu  # noqa: F401
        import tracer.provenance  # noqa: F401

    warnings.simplefilter("error")
    # Up to PyTorch 2.12, the first profile of a process gives this warning.
    warnings.filterwarnings("ignore", "Warning: Profiler clears events")
    gc.freeze()  # Without this call, a garbage collection in a fork would copy the memory of all objects.
    for line in sys.stdin:
        os.write(answers, f"{json.dumps(in_fork(json.loads(line)))}\n".encode())


if __name__ == "__main__":
    main()

"""torch.backends.cudnn, torch.backends.cuda and torch.version.cuda: flags keep what is set; versions come from the recording.

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True

Most flags are stored in C++ that every build has; only those that depend on the build are replaced. Flags do not change
timing: recorded times reflect the flags of the recorded run, which `trace info` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from replayer.state import gpu, in_bad_fork
from replayer.surfaces.patching import refuse
from replayer.torch_types import TorchAny
from traces.model.machine import Machine
from traces.script.patching import patch

# `torch.backends.cudnn.version()` if it was not recorded: 9.1.0, common with PyTorch 2.4 to 2.6.
ASSUMED_CUDNN = 90100
ASSUMED_CUDA = "12.4"  # `torch.version.cuda` if it was not recorded and torch is built without CUDA

_FFT_PLANS = 4096  # number of cuFFT plans that torch keeps by default
_CHOICE = "call scaled_dot_product_attention, which chooses a kernel"

REFUSED = {f"can_use_{kernel}_attention": _CHOICE for kernel in ("flash", "efficient", "cudnn")}


def kept(get: Callable[[], TorchAny]) -> tuple[Callable[[], TorchAny], Callable[[TorchAny], None]]:
    """Return a getter and a setter for a flag whose C++ setter checks the build. The initial value comes from C++."""
    chosen: list[TorchAny] = []

    def choose(value: TorchAny) -> None:
        chosen[:] = [value]

    return (lambda: chosen[0] if chosen else get()), choose


def install(torch_module: ModuleType) -> None:
    """Patch the functions that depend on the build."""
    c: TorchAny = torch_module._C
    get_linalg, set_linalg = kept(c._get_linalg_preferred_backend)
    get_blas, set_blas = kept(c._get_blas_preferred_backend)
    patch(
        c,
        _has_cudnn=True,
        _is_flash_attention_available=lambda: True,
        _get_linalg_preferred_backend=get_linalg,
        _set_linalg_preferred_backend=set_linalg,
        _get_blas_preferred_backend=get_blas,
        _set_blas_preferred_backend=set_blas,
    )
    # torch.backends.cudnn is an object that wraps a module; its functions look names up in that module.
    patch(torch_module.backends.cudnn.m, _init=lambda: True, version=lambda: gpu().machine.cudnn or ASSUMED_CUDNN)
    fft_plans: dict[int, int] = {}  # by device: the cache size that the script set; no plans are cached
    patch(
        torch_module.backends.cuda.cuFFTPlanCache,
        size=property(lambda cache: 0),
        max_size=property(
            lambda cache: fft_plans.get(cache.device_index, _FFT_PLANS),
            lambda cache, plans: fft_plans.__setitem__(cache.device_index, plans),
        ),
        clear=lambda cache: None,
    )
    refuse(torch_module.backends.cuda, "torch.backends.cuda", REFUSED)
    if torch_module.version.cuda is None:
        _tell_recorded_cuda(torch_module.version)


def _tell_recorded_cuda(version: TorchAny) -> None:
    """Make a build without CUDA report the recorded version, because scripts treat None as "no GPU".

    A CUDA build keeps its own version: extensions compiled against it (torchvision) compare the two.
    """

    def recorded_version(name: str) -> TorchAny:
        """Return `torch.version.cuda` when it is read, so that importing torch does not open the recording."""
        if name != "cuda":
            raise AttributeError(f"module 'torch.version' has no attribute {name!r}")
        return None if in_bad_fork() else _cuda_of(gpu().machine)

    del version.cuda
    patch(version, __getattr__=recorded_version)


def _cuda_of(machine: Machine) -> str | None:
    return machine.cuda or (None if machine.hip else ASSUMED_CUDA)

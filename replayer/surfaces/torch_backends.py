"""torch.backends.cudnn and .cuda, torch.version.cuda: flags keep what is set, versions are those of the recording.

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True

Nearly all flags live in C++ that every build has; only what depends on the build is ours. A flag changes no time: the
recording was made with the flags of its own run, which `trace info` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from replayer.state import gpu, in_bad_fork
from replayer.surfaces.patching import refuse
from replayer.torch_types import TorchAny
from traces.model.machine import Machine
from traces.script.patching import patch

# What `torch.backends.cudnn.version()` says where the recording does not: 9.1.0, common with PyTorch 2.4 to 2.6.
ASSUMED_CUDNN = 90100
ASSUMED_CUDA = "12.4"  # likewise `torch.version.cuda`, of a build without CUDA

_FFT_PLANS = 4096  # cuFFT plans that torch keeps by default
_CHOICE = "call scaled_dot_product_attention, which chooses by itself"

REFUSED = {f"can_use_{kernel}_attention": _CHOICE for kernel in ("flash", "efficient", "cudnn")}


def kept(get: Callable[[], TorchAny]) -> tuple[Callable[[], TorchAny], Callable[[TorchAny], None]]:
    """A getter and a setter of a choice that C++ checks against its build; it begins as what C++ says."""
    chosen: list[TorchAny] = []

    def choose(value: TorchAny) -> None:
        chosen[:] = [value]

    return (lambda: chosen[0] if chosen else get()), choose


def install(torch_module: ModuleType) -> None:
    """Patch what depends on the build."""
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
    # torch.backends.cudnn is an object in front of a module, which is where its functions look names up.
    patch(torch_module.backends.cudnn.m, _init=lambda: True, version=lambda: gpu().machine.cudnn or ASSUMED_CUDNN)
    fft_plans: dict[int, int] = {}  # by device: how many the script wants kept; there are none
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
    """Let a build without CUDA say the recorded version: scripts take None for a machine without a GPU.

    A CUDA build keeps its own, for what was compiled against it (torchvision) compares the two.
    """

    def recorded_version(name: str) -> TorchAny:
        """`torch.version.cuda`, looked up when read: the recording is not opened before a script asks for CUDA."""
        if name != "cuda":
            raise AttributeError(f"module 'torch.version' has no attribute {name!r}")
        return None if in_bad_fork() else _cuda_of(gpu().machine)

    del version.cuda
    patch(version, __getattr__=recorded_version)


def _cuda_of(machine: Machine) -> str | None:
    return machine.cuda or (None if machine.hip else ASSUMED_CUDA)

"""Makes torch.backends and torch.version.cuda report the recorded versions of CUDA and cuDNN.

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType, SimpleNamespace

from replayer.ops.composite.cuda_decompositions import CUDNN, EFFICIENT, FLASH, can_use_attention
from replayer.ops.composite.rnn import MODES
from replayer.state import describe_gpu, in_bad_fork
from replayer.torch_types import TorchAny
from traces.script.patching import PATCHES, patch

# reported if no version was recorded
ASSUMED_CUDNN = 90100
ASSUMED_CUDA = "12.4"  # reported if no version was recorded and torch was built without CUDA

_FFT_PLANS = 4096  # PyTorch's default number of plans


def flag_functions(get: Callable[[], TorchAny]) -> tuple[Callable[[], TorchAny], Callable[[TorchAny], None]]:
    chosen: list[TorchAny] = []

    def choose(value: TorchAny) -> None:
        chosen[:] = [value]

    return (lambda: chosen[0] if chosen else get()), choose


def install(torch_module: ModuleType) -> None:
    c: TorchAny = torch_module._C
    get_linalg, set_linalg = flag_functions(c._get_linalg_preferred_backend)
    get_blas, set_blas = flag_functions(c._get_blas_preferred_backend)
    patch(
        c,
        _has_cudnn=True,
        _is_flash_attention_available=lambda: True,
        _get_linalg_preferred_backend=get_linalg,
        _set_linalg_preferred_backend=set_linalg,
        _get_blas_preferred_backend=get_blas,
        _set_blas_preferred_backend=set_blas,
    )
    in_build = getattr(c, "_cudnn", None)
    built = ASSUMED_CUDNN if in_build is None else in_build.getVersionInt()
    # `torch.backends.cudnn` is an object that PyTorch puts in place of the module. Its attribute `m` is the module.
    patch(torch_module.backends.cudnn.m, _init=lambda: True, version=lambda: describe_gpu().machine.cudnn or built)
    fft_plans: dict[int, int] = {}
    patch(
        torch_module.backends.cuda.cuFFTPlanCache,
        size=property(lambda cache: 0),
        max_size=property(
            lambda cache: fft_plans.get(cache.device_index, _FFT_PLANS),
            lambda cache, plans: fft_plans.__setitem__(cache.device_index, plans),
        ),
        clear=lambda cache: None,
    )
    kernels = {"flash": FLASH, "efficient": EFFICIENT, "cudnn": CUDNN}
    answers = {f"can_use_{name}_attention": partial(can_use_attention, kernel) for name, kernel in kernels.items()}
    patch(torch_module.backends.cuda, **answers)
    patch(torch_module, _use_cudnn_rnn_flatten_weight=lambda: True)
    # since PyTorch 2.11, `torch.backends.cudnn.rnn` is an object instead of a module
    rnn: TorchAny = import_module("torch.backends.cudnn.rnn")
    patch(getattr(rnn, "m", rnn), _cudnn=SimpleNamespace(RNNMode=SimpleNamespace(**MODES)))
    if torch_module.version.cuda is None:
        _report_recorded_cuda(torch_module.version)


def _report_recorded_cuda(version: TorchAny) -> None:
    def recorded_version(name: str) -> TorchAny:
        if name != "cuda":
            raise AttributeError(f"module 'torch.version' has no attribute {name!r}")
        if in_bad_fork():
            return None
        machine = describe_gpu().machine
        return machine.cuda or (None if machine.hip else ASSUMED_CUDA)

    PATCHES.remove(version, "cuda")
    patch(version, __getattr__=recorded_version)

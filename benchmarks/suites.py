"""Runs other projects' test suites on the CPU and on the virtual GPU, and writes docs/suites.md.

    python benchmarks/suites.py FOLDER [--only kornia] [--gpu a100] [--write docs/suites.md]

FOLDER contains the sources of each project in a folder NAME-VERSION, as in the table SUITES. The option `--download` gets the
sources of projects whose PyPI package includes tests. The others are checkouts of the tag. The dependencies of all projects
must be installed in this environment.

Each suite runs twice in its own process with the pytest plugin: without a GPU and with `--gpu`. If the process of a suite dies
or hangs, the suite continues in a new process after the test that was running. The results are stored in FOLDER, so an
interrupted run can be continued. Both runs use the same sample.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "benchmarks" / "programs"
STARTS = 40  # how often a suite is started again
SILENT_S = 600  # a process hangs if it writes nothing for this many seconds
TEST_S = 60
_PYTHONPATH = tuple(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


@dataclass(frozen=True)
class Suite:
    """Describes the tests of a project.

    The variables `on_gpu` and the second entry of `options` make the tests use CUDA. The variable SUITE_SETUP contains code
    that runs before the tests are collected. The field `sample` is the number of tests to run, or 0 for all tests.
    """

    name: str
    version: str
    tests: tuple[str, ...]
    sample: int = 0
    source: str = "sdist"
    import_from: str = ""
    options: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # options on the CPU, and options on the GPU
    variables: dict[str, str] = field(default_factory=dict)
    on_gpu: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"


_KORNIA = ("--dtype", "float32,float16", "--device")
_TORCHMETRICS = "bases audio regression pairwise utilities image segmentation clustering nominal shape"
_ACCELERATE = (
    "accelerator big_modeling data_loader hooks grad_sync kwargs_handlers memory_utils modeling_utils offload optimizer"
    " scheduler state_checkpointing utils"
)
_PEFT = "custom_models tuners_utils initialization low_level_api mixed"
_NO_ADDOPTS = ("-o", "addopts=")
_NO_OPTIONS = (("-o", "addopts=", "-o", "filterwarnings="),) * 2  # without a GPU, and with a GPU
_IGNITE = "metrics engine handlers base"
_MONAI = "losses metrics networks transforms inferers optimizers"
_TORCHAO = "test_low_bit_optim.py test_ops.py test_utils.py quantization dtypes float8/test_base.py"
_TORCHRL = "modules objectives data test_distributions.py test_exploration.py test_postprocs.py test_rlhf.py"
_LITGPT = (
    "adapter adapter_v2 batch chat deepseek_moe full generate_speculatively lora merge_lora model multihead_latent_attention"
    " rope trainer_support utils yarn"
)
_DEFAULT_DEVICE = {"SUITE_SETUP": "import torch; torch.set_default_device('cuda')"}  # for suites that do not choose a device
_NO_DEADLINE = (  # hypothesis fails examples that take more than 200 ms
    "import hypothesis; hypothesis.settings.register_profile('slow', deadline=None); hypothesis.settings.load_profile('slow')"
)
_EAGERPY = (("--backend", "pytorch"), ("--backend", "pytorch-gpu"))
_EVOTORCH = (
    "constraint_penalization decorators expects_ndim func_alg func_ops optimizers pareto_sorting ranking read_only_tensor"
    " tensor_making tensorframe tools_misc"
)
_TIMM = "layers layers_pool layers_drop utils optim"
_PYTORCH_NN = "convolution dropout embedding init multihead_attention packed_sequence parametrization pooling"
_PYTORCH_SOURCE = "MetaX-MACA/mcPytorch b3db5eed, without test/conftest.py"
_PYTORCH_TENSORS = (
    "complex indexing scatter_gather_ops segment_reductions shape_ops sort_and_select tensor_creation_ops torch type_promotion"
    " view_ops"
)
_PYTORCH_OPS = "binary_ufuncs foreach linalg masked reductions sparse sparse_csr spectral_ops unary_ufuncs"
_PYTORCH_MODULES = "autograd modules native_mha nestedtensor nn"
_COMPOSER = "algorithms metrics models optim utils"
_TORCHTUNE = "generation models/llama3 models/gemma models/llama2 modules rlhf training"


def _pytorch(part: str, tests: Sequence[str], sample: int) -> Suite:
    """Return the tests that PyTorch's `instantiate_device_type_tests` creates for the CPU and for CUDA."""
    only_for = "PYTORCH_TESTING_DEVICE_ONLY_FOR"
    variables = {only_for: "cpu", "SUITE_SETUP": "import pytorch_2_4_names"}
    files = tuple(f"test/{name}.py" for name in tests)
    return Suite(f"pytorch_{part}", "2.4.0", files, sample, _PYTORCH_SOURCE, variables=variables, on_gpu={only_for: "cuda"})


SUITES = (
    Suite(
        "pytorch",
        "2.4.0",
        ("test/test_cuda.py", "test/test_optim.py", *(f"test/nn/test_{name}.py" for name in _PYTORCH_NN.split())),
        200,
        _PYTORCH_SOURCE,
    ),
    _pytorch("tensors", [f"test_{name}" for name in _PYTORCH_TENSORS.split()], 250),
    _pytorch("ops", [f"test_{name}" for name in _PYTORCH_OPS.split()], 250),
    _pytorch("modules", [f"test_{name}" for name in _PYTORCH_MODULES.split()], 250),
    _pytorch("functorch", [f"functorch/test_{name}" for name in "eager_transforms vmap".split()], 150),
    Suite(
        "torchmetrics",
        "1.9.0",
        tuple(f"tests/unittests/{name}" for name in _TORCHMETRICS.split()),
        150,
        "Lightning-AI/torchmetrics v1.9.0",
        "src",
    ),
    Suite(
        "kornia",
        "0.9.0rc1",
        ("tests",),
        300,
        "kornia/kornia v0.9.0rc1",
        options=((*_KORNIA, "cpu"), (*_KORNIA, "cuda")),
        variables={"KORNIA_TEST_IN_SUBPROCESS": "1"},
    ),
    Suite("einops", "0.8.2", ("einops/tests",), variables={"EINOPS_TEST_BACKENDS": "numpy,torch"}),
    Suite("accelerate", "1.15.0", tuple(f"tests/test_{name}.py" for name in _ACCELERATE.split())),
    Suite(
        "peft",
        "0.21.2",
        tuple(f"tests/test_{name}.py" for name in _PEFT.split()),
        80,
        options=(_NO_ADDOPTS, _NO_ADDOPTS),
    ),
    Suite("gpytorch", "1.15.2", tuple(f"test/{name}" for name in "examples kernels likelihoods distributions".split()), 200),
    Suite("linear_operator", "0.6.1", ("test",), 150, "cornellius-gp/linear_operator v0.6.1"),
    Suite("torch_geometric", "2.8.0.post1", ("test/nn", "test/utils"), 100, "pyg-team/pytorch_geometric 2.8.0.post1"),
    Suite("lightning", "2.6.5", ("tests/tests_fabric",), 100, "Lightning-AI/pytorch-lightning 2.6.5", "src"),
    Suite("timm", "1.0.31", tuple(f"tests/test_{name}.py" for name in _TIMM.split()), 100, on_gpu={"TORCH_DEVICE": "cuda"}),
    Suite("torchvision", "0.11.0a0", ("test/test_ops.py",), 100, "pytorch/vision fe3118c5, torch._six replaced in the tests"),
    Suite(
        "torchdiffeq",
        "657943ac",
        tuple(f"tests/{name}_tests.py" for name in "api event gradient norm odeint".split()),
        0,
        "rtqichen/torchdiffeq 657943ac",
        ".",
    ),
    Suite("torchsde", "eb3a00e3", ("tests",), 60, "google-research/torchsde eb3a00e3", "."),
    Suite(
        "pytorch-metric-learning",
        "216a792c",
        tuple(f"tests/{name}" for name in "distances losses miners reducers regularizers utils".split()),
        60,
        "KevinMusgrave/pytorch-metric-learning 216a792c",
        "src",
        variables={"TEST_DEVICE": "cpu"},
        on_gpu={"TEST_DEVICE": "cuda"},
    ),
    Suite("skorch", "5db0ddc9", ("skorch/tests",), 100, "skorch-dev/skorch 5db0ddc9", ".", options=(_NO_ADDOPTS, _NO_ADDOPTS)),
    Suite("e3nn", "2aa7f584", ("tests",), 60, "e3nn/e3nn 2aa7f584", ".", on_gpu=_DEFAULT_DEVICE),
    Suite("ignite", "de08e799", tuple(f"tests/ignite/{name}" for name in _IGNITE.split()), 150, "pytorch/ignite de08e799", "."),
    Suite("captum", "faac0877", tuple(f"tests/{name}" for name in "attr module".split()), 100, "pytorch/captum faac0877", "."),
    Suite(
        "botorch",
        "e390e135",
        tuple(f"test/{name}" for name in "acquisition models optim posteriors sampling utils".split()),
        60,
        "pytorch/botorch e390e135",
        ".",
        on_gpu={"SUITE_SETUP": "import torch, botorch.utils.testing as t; t.BotorchTestCase.device = torch.device('cuda')"},
    ),
    Suite("opacus", "4d0ebc84", ("opacus/tests",), 60, "pytorch/opacus 4d0ebc84", "."),
    Suite("x-transformers", "9252ed78", ("tests",), 100, "lucidrains/x-transformers 9252ed78", ".", on_gpu=_DEFAULT_DEVICE),
    Suite("MONAI", "d388d1c6", tuple(f"tests/{name}" for name in _MONAI.split()), 120, "Project-MONAI/MONAI d388d1c6", "."),
    Suite(
        "pytorch_optimizer",
        "7a076d2f",
        ("tests",),
        80,
        "kozistr/pytorch_optimizer 7a076d2f",
        ".",
        (_NO_ADDOPTS, _NO_ADDOPTS),
        on_gpu=_DEFAULT_DEVICE,
    ),
    Suite("ao", "36027d82", tuple(f"test/{name}" for name in _TORCHAO.split()), 80, "pytorch/ao 36027d82", "."),
    Suite(
        "tensordict",
        "a1a061e3",
        tuple(f"test/{name}" for name in "tensordict tensorclass nn utils".split()),
        150,
        "pytorch/tensordict a1a061e3",
        ".",
        options=(_NO_ADDOPTS, _NO_ADDOPTS),
    ),
    Suite(
        "pyro",
        "ff6ae1c9",
        tuple(f"tests/{name}" for name in "distributions infer nn ops optim params poutine".split()),
        150,
        "pyro-ppl/pyro ff6ae1c9",
        ".",
        on_gpu=_DEFAULT_DEVICE,
    ),
    Suite("segmentation_models", "50066163", ("tests",), 80, "qubvel-org/segmentation_models.pytorch 50066163", "."),
    Suite(
        "diffusers",
        "58eb52c0",
        tuple(f"tests/{name}" for name in "models schedulers others".split()),
        120,
        "huggingface/diffusers 58eb52c0",
        "src",
    ),
    Suite("rl", "ae9719f1", tuple(f"test/{name}" for name in _TORCHRL.split()), 120, "pytorch/rl ae9719f1", "."),
    Suite("open_clip", "89fb801f", ("tests",), 80, "mlfoundations/open_clip 89fb801f", "src", on_gpu=_DEFAULT_DEVICE),
    Suite("catalyst", "e99f9065", ("catalyst",), 80, "catalyst-team/catalyst e99f9065", "."),
    Suite("torcheval", "33c1391e", ("tests",), 80, "pytorch/torcheval 33c1391e", "."),
    Suite("tnt", "b83990d2", ("tests/framework", "tests/utils"), 80, "pytorch/tnt b83990d2", "."),
    Suite(
        "litgpt",
        "26857050",
        tuple(f"tests/test_{name}.py" for name in _LITGPT.split()),
        80,
        "Lightning-AI/litgpt 26857050",
        ".",
    ),
    Suite(
        "fairscale",
        "146f1602",
        tuple(f"tests/{name}" for name in "nn/checkpoint nn/misc nn/moe nn/pipe optim experimental/nn".split()),
        100,
        "facebookresearch/fairscale 146f1602",
        ".",
    ),
    Suite("backpack", "366bcd60", ("test",), 80, "f-dangel/backpack 366bcd60", "."),
    Suite("geoopt", "07598cdb", ("tests",), 60, "geoopt/geoopt 07598cdb", ".", _NO_OPTIONS, on_gpu=_DEFAULT_DEVICE),
    Suite("fvcore", "3378afe0", ("tests",), 80, "facebookresearch/fvcore 3378afe0", ".", on_gpu=_DEFAULT_DEVICE),
    Suite("piq", "9948a52f", ("tests",), 60, "photosynthesis-team/piq 9948a52f", "."),
    Suite(
        "vector_quantize",
        "0d7d1aa8",
        ("tests",),
        100,
        "lucidrains/vector-quantize-pytorch 0d7d1aa8",
        ".",
        on_gpu=_DEFAULT_DEVICE,
    ),
    Suite("Laplace", "44ea62ac", ("tests",), 80, "aleximmer/Laplace 44ea62ac", ".", on_gpu=_DEFAULT_DEVICE),
    Suite("xitorch", "ad9eec1b", ("xitorch/_tests",), 80, "xitorch/xitorch ad9eec1b", "."),
    Suite("DeepCTR", "f6854257", ("tests",), 60, "shenweichen/DeepCTR-Torch f6854257", "."),
    Suite(
        "torchtune",
        "bd2a0fc7",
        tuple(f"tests/torchtune/{name}" for name in _TORCHTUNE.split()),
        100,
        "pytorch/torchtune bd2a0fc7",
        ".",
        on_gpu=_DEFAULT_DEVICE,
    ),
    Suite("pypose", "2b684b00", ("tests",), 120, "pypose/pypose 2b684b00", ".", (_NO_ADDOPTS, _NO_ADDOPTS)),
    Suite(
        "pytorch-pfn-extras",
        "8999d94c",
        ("tests/pytorch_pfn_extras_tests",),
        250,
        "pfnet/pytorch-pfn-extras 8999d94c",
        ".",
        _NO_OPTIONS,
    ),
    Suite(
        "theseus",
        "c8583de4",
        tuple(f"tests/{name}_tests" for name in "torchlie torchkin theseus".split()),
        100,
        "facebookresearch/theseus c8583de4",
        ".",
        _NO_OPTIONS,
    ),
    Suite("torch-harmonics", "9e9fa537", ("tests",), 100, "NVIDIA/torch-harmonics 9e9fa537", ".", _NO_OPTIONS),
    Suite(
        "mmengine",
        "25434293",
        tuple(f"tests/test_{name}" for name in "model optim hooks runner device dist structures utils evaluator".split()),
        150,
        "open-mmlab/mmengine 25434293",
        ".",
        _NO_OPTIONS,
    ),
    Suite(
        "lightly",
        "e8d317fc",
        tuple(f"tests/{name}" for name in "loss models utils".split()),
        200,
        "lightly-ai/lightly e8d317fc",
        ".",
        _NO_OPTIONS,
    ),
    Suite("audiomentations", "f137bd52", ("tests",), 120, "asteroid-team/torch-audiomentations f137bd52", ".", _NO_OPTIONS),
    Suite(
        "torchjd", "46962c2b", ("tests/unit",), 80, "TorchJD/torchjd 46962c2b", "src", on_gpu={"PYTEST_TORCH_DEVICE": "cuda:0"}
    ),
    Suite("snntorch", "634fc223", ("tests",), 80, "jeshraghian/snntorch 634fc223", ".", on_gpu=_DEFAULT_DEVICE),
    Suite("norse", "065a3b45", ("norse/torch",), 80, "norse/norse 065a3b45", ".", on_gpu=_DEFAULT_DEVICE),
    Suite("zuko", "1063ae41", ("tests",), 0, "probabilists/zuko 1063ae41", ".", on_gpu=_DEFAULT_DEVICE),
    Suite("entmax", "c2bec6d5", ("entmax",), 80, "deep-spin/entmax c2bec6d5", ".", on_gpu=_DEFAULT_DEVICE),
    Suite("deepinv", "3f832a7c", ("deepinv/tests",), 100, "deepinv/deepinv 3f832a7c", ".", _NO_OPTIONS),
    Suite("sbi", "900821dc", ("tests",), 60, "sbi-dev/sbi 900821dc", ".", _NO_OPTIONS),
    Suite("stable-baselines3", "e05d2dbe", ("tests",), 60, "DLR-RM/stable-baselines3 e05d2dbe", ".", _NO_OPTIONS),
    Suite("neuraloperator", "93d3f063", ("neuralop",), 60, "neuraloperator/neuraloperator 93d3f063", "."),
    Suite(
        "tensorly",
        "acc439e9",
        ("tensorly",),
        120,
        "tensorly/tensorly acc439e9",
        ".",
        variables={"TENSORLY_BACKEND": "pytorch"},
        on_gpu=_DEFAULT_DEVICE,
    ),
    Suite(
        "composer",
        "64051888",
        tuple(f"tests/{name}" for name in _COMPOSER.split()),
        80,
        "mosaicml/composer 64051888",
        ".",
        _NO_OPTIONS,
    ),
    Suite("nflows", "5d223444", ("tests",), 120, "bayesiains/nflows 5d223444", ".", _NO_OPTIONS, on_gpu=_DEFAULT_DEVICE),
    Suite("torchcde", "9ff6aba4", ("test",), 80, "patrick-kidger/torchcde 9ff6aba4", ".", _NO_OPTIONS, on_gpu=_DEFAULT_DEVICE),
    Suite(
        "normalizing-flows",
        "c6616b1a",
        ("normflows",),
        100,
        "VincentStimper/normalizing-flows c6616b1a",
        ".",
        (("-o", "python_files=*_test.py"),) * 2,
        on_gpu=_DEFAULT_DEVICE,
    ),
    Suite(
        "torch_optimizer",
        "19c3e419",
        ("tests",),
        100,
        "jettify/pytorch-optimizer 19c3e419",
        ".",
        _NO_OPTIONS,
        on_gpu=_DEFAULT_DEVICE,
    ),
    Suite("torchquad", "4e5e95b0", ("tests",), 0, "esa/torchquad 4e5e95b0", "."),
    Suite("torchio", "9051dbcd", ("tests",), 80, "fepegar/torchio 9051dbcd", "src", _NO_OPTIONS, on_gpu=_DEFAULT_DEVICE),
    Suite(
        "torchsurv",
        "4fd1d2f5",
        ("tests",),
        80,
        "Novartis/torchsurv 4fd1d2f5",
        "src",
        _NO_OPTIONS,
        on_gpu={"SUITE_SETUP": f"{_DEFAULT_DEVICE['SUITE_SETUP']}; {_NO_DEADLINE}"},
    ),
    Suite("POT", "aed01202", ("test",), 120, "PythonOT/POT aed01202, without the folder ot", "", _NO_OPTIONS),
    Suite("optimum-quanto", "e33f8202", ("tests",), 80, "huggingface/optimum-quanto e33f8202", ".", _NO_OPTIONS),
    Suite(
        "compressed-tensors",
        "ac8e2ba8",
        ("tests",),
        80,
        "vllm-project/compressed-tensors ac8e2ba8, with a file version.py. Its tests need a GPU",
        "src",
        _NO_OPTIONS,
    ),
    Suite("dion", "0a059a45", ("tests",), 80, "microsoft/dion 0a059a45", ".", _NO_OPTIONS),
    Suite(
        "keras",
        "3422977a",
        tuple(f"keras/src/{name}" for name in "activations initializers layers losses metrics models optimizers".split()),
        150,
        "keras-team/keras 3422977a",
        ".",
        _NO_OPTIONS,
        {"KERAS_BACKEND": "torch"},
    ),
    Suite("torchode", "bfc1abcc", ("tests",), 0, "martenlienen/torchode bfc1abcc", ".", on_gpu=_DEFAULT_DEVICE),
    Suite(
        "kymatio",
        "11552ed5",
        ("tests/general", *(f"tests/scattering{dimensions}d" for dimensions in (1, 2, 3))),
        100,
        "kymatio/kymatio 11552ed5",
        ".",
    ),
    Suite("curvlinops", "63fd690d", ("test",), 80, "f-dangel/curvlinops 63fd690d", ".", _NO_OPTIONS),
    Suite(
        "optimizers",
        "f6066066",
        tuple(f"distributed_shampoo/{name}" for name in "gpu_tests preconditioner tests utils".split()),
        100,
        "facebookresearch/optimizers f6066066",
        ".",
        (("-o", "python_files=*_test.py"),) * 2,
    ),
    Suite(
        "ptwt",
        "6c3b62c1",
        ("tests",),
        80,
        "v0lta/PyTorch-Wavelet-Toolbox 6c3b62c1",
        "src",
        _NO_OPTIONS,
        on_gpu=_DEFAULT_DEVICE,
    ),
    Suite(
        "evotorch",
        "cebcac4f",
        tuple(f"tests/test_{name}.py" for name in _EVOTORCH.split()),
        80,
        "nnaisense/evotorch cebcac4f, without tests/conftest.py, which starts Ray",
        "src",
        _NO_OPTIONS,
        on_gpu=_DEFAULT_DEVICE,
    ),
    Suite("azula", "bec12b89", ("tests",), 80, "probabilists/azula bec12b89", ".", _NO_OPTIONS, on_gpu=_DEFAULT_DEVICE),
    Suite("higher", "15a247a", ("tests",), 80, "facebookresearch/higher 15a247a", ".", _NO_OPTIONS, on_gpu=_DEFAULT_DEVICE),
    Suite("pytorch_wavelets", "9a0c507", ("tests",), 60, "fbcotter/pytorch_wavelets 9a0c507", ".", _NO_OPTIONS),
    Suite("eagerpy", "5b3b37a", ("tests",), 100, "jonasrauber/eagerpy 5b3b37a", ".", _EAGERPY),
    Suite("transformers", "5.24.0", (str(PROGRAMS / "test_tiny_transformers.py"),), 60, "package"),
)


@dataclass(frozen=True)
class Outcome:
    """Says how a test ended: passed, failed, skipped, xfailed, refused (NotEmulated), died or hung."""

    how: str
    message: str = ""


class Kind(Enum):
    """Describes a reason for different results on the CPU and on the virtual GPU."""

    AS_ON_A_GPU = "as on a GPU"
    ENVIRONMENT = "not run: a file or package is missing"
    NOT_EMULATED = "NotEmulated names the call"
    LIMIT = "a limit of the virtual GPU"
    SLOW = "not ended"
    UNKNOWN = "no known cause"


@dataclass(frozen=True)
class Cause:
    """Lists reasons why a test ends differently on the virtual GPU and on the CPU."""

    suite: str
    pattern: str  # regular expression for the text "test: outcome message"
    kind: Kind
    text: str


_OFFLINE = r"URLError|ConnectionError|OfflineModeIsEnabled|LocalEntryNotFoundError|HfHub|HF_HUB_|[Cc]ould(n't| not) connect"
_REFUSED = Cause("", r": refused |NotEmulated: ", Kind.NOT_EMULATED, "the message names the call")
_NOT_INSTALLED = "a package is not installed"
_UNKNOWN = Cause("", "", Kind.UNKNOWN, "no known cause")
CAUSES = (
    Cause("", _OFFLINE, Kind.ENVIRONMENT, "the test downloads a file, and the machine is offline"),
    Cause("", r"package must be available|ModuleNotFoundError|'triton' package", Kind.ENVIRONMENT, _NOT_INSTALLED),
    Cause(
        "kornia",
        r"tests/augmentation/.*Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu",
        Kind.AS_ON_A_GPU,
        "a bug of kornia 0.9.0rc1: the mask of the images to augment stays on the CPU. kornia 0.9.0 moves the mask",
    ),
    *(
        Cause(name, pattern, Kind.LIMIT, "the project tests `type(x) is Tensor`, which is false on the virtual GPU")
        for name, pattern in (
            ("botorch", r"argument 'fill_value' \(position 2\) must be Number"),
            ("optimum-quanto", r"'Tensor' object has no attribute '(unpack|__tensor_flatten__)'"),
        )
    ),
    Cause(
        "x-transformers",
        r"test_custom_alibi.*at least two devices, cuda:0 and cpu",
        Kind.AS_ON_A_GPU,
        "the default device is cuda, and `Tensor(slopes)` creates the slopes of alibi on the CPU",
    ),
    Cause(
        "pytorch",
        r"does not have the attribute|failed: \(True, True\) != True|unexpected keyword argument|Muon only supports",
        Kind.AS_ON_A_GPU,
        "the test is for PyTorch 2.4, and PyTorch 2.13 changed what it tests",
    ),
    Cause(
        "pytorch_tensors",
        r"has no attribute '(msort|read_vitals)'|is not a positive integer|test_nondeterministic_alert",
        Kind.AS_ON_A_GPU,
        "the test is for older releases of PyTorch, numpy and scipy",
    ),
    Cause("pytorch_ops", r"test_linalg.*RecursionError", Kind.AS_ON_A_GPU, "the tests' setUp calls itself without end"),
    Cause(
        "pytorch_modules",
        r"test_modules\.py.*p_cdatas_before",
        Kind.LIMIT,
        "a parameter has another C++ object after it moved to another device",
    ),
    Cause(
        "pytorch_modules",
        r"Expected both self and other to be nested",
        Kind.LIMIT,
        "an op of a nested and a dense tensor, for which only CUDA has a kernel",
    ),
    Cause(
        "pytorch",
        r"test_graph_three_successive|test_graph_concurrent_replay",
        Kind.LIMIT,
        "the test expects wrong values from a race between CUDA graphs that share memory",
    ),
    Cause("pytorch", r"test_memory_(snapshot|plots)", Kind.LIMIT, "memory snapshots contain only Python frames"),
    Cause("pytorch", r"test_cycles", Kind.LIMIT, "Python's garbage collector frees virtual memory before it reports a cycle"),
    Cause("pytorch", r"test_lazy_init", Kind.LIMIT, "unknown indices in CUDA_VISIBLE_DEVICES count as recorded GPUs"),
    *(
        Cause(
            name,
            r"got mat1 is on cpu, different from other tensors on cuda:0",
            Kind.AS_ON_A_GPU,
            "the default device is cuda, and the tests' data from numpy stays on the CPU",
        )
        for name in ("pytorch_optimizer", "torch_optimizer")
    ),
    Cause(
        "torch_optimizer",
        r"variable 'input_cuda'|Boolean value of Tensor with more than one value",
        Kind.AS_ON_A_GPU,
        "on a GPU, the test reads a variable before it is assigned, or asserts a tensor with several elements",
    ),
    Cause(
        "torchode",
        r"(third|fourth)_order_coefficients_from_k|tsit5_recovers.*on the same device",
        Kind.AS_ON_A_GPU,
        "the default device is cuda, and the tests' data from numpy stays on the CPU",
    ),
    Cause(
        "",
        r"can't convert cuda:0 device type tensor to numpy",
        Kind.AS_ON_A_GPU,
        "the tests convert tensors on the GPU to numpy",
    ),
    Cause(
        "pyro",
        r"actual grad = ",
        Kind.LIMIT,
        "a gradient of random samples. The random numbers differ from those of the CPU and of a GPU",
    ),
    Cause("pyro", r"RuntimeError:\s*$", Kind.LIMIT, "a traced function computes wrong sizes when it runs again"),
    Cause(
        "pytorch-metric-learning",
        r"test_margin_loss.*indices should be either on cpu or on the same device as the indexed tensor",
        Kind.AS_ON_A_GPU,
        "MarginLoss keeps beta on the CPU and indexes it with labels on the GPU",
    ),
    Cause(
        "open_clip",
        r"No CUDA GPUs are available",
        Kind.AS_ON_A_GPU,
        "a test file sets CUDA_VISIBLE_DEVICES to nothing before CUDA is initialized",
    ),
    Cause(
        "ao",
        r"test_x86inductor_fusion\.py",
        Kind.LIMIT,
        "functions on CPU tensors run op by op. Inductor does not compile them",
    ),
    Cause(
        "torcheval",
        r"test_two_tasks_threshold_specified_as_tensor.*torch\.Size\(\[1\]\) != torch\.Size\(\[2\]\)",
        Kind.AS_ON_A_GPU,
        "the test's call with tensors on the GPU lacks the argument num_tasks",
    ),
    Cause("tnt", r"test_get_cpu_device.*'cuda' != 'cpu'", Kind.AS_ON_A_GPU, "the test expects a machine without a GPU"),
    *(
        Cause(
            name,
            r"two devices, cuda:0 and cpu|mat1 is on cuda:0, different from other tensors on cpu|rleaky_compile_fullgraph",
            Kind.AS_ON_A_GPU,
            "the default device is cuda, and `torch.Tensor(values)` creates the tests' data on the CPU",
        )
        for name in ("snntorch", "geoopt")
    ),
    *(
        Cause(
            name,
            r"two devices, cuda:0 and cpu|mat1 is on cuda:0, different|index is on cpu, different|type \(torch.FloatTensor\)",
            Kind.AS_ON_A_GPU,
            "the default device is cuda, and `torch.Tensor(values)` creates tensors of the project or of its tests on the CPU",
        )
        for name in ("nflows", "normalizing-flows")
    ),
    Cause(
        "fvcore",
        r"test_data_parallel_root_scope.*mat1 is on cuda:0",
        Kind.AS_ON_A_GPU,
        "the default device is cuda, and the test moves its model to the CPU",
    ),
    Cause(
        "tensorly",
        r"`driver` other than `gels` is not supported on CUDA|\"addmm_cuda\" not implemented for 'Long'",
        Kind.AS_ON_A_GPU,
        "the test calls `lstsq` with a driver that CUDA lacks, or multiplies matrices of integers",
    ),
    Cause(
        "Laplace",
        r"test_addition.*two devices, cuda:0 and cpu",
        Kind.AS_ON_A_GPU,
        "the default device is cuda, and the test creates one of two operands on the CPU",
    ),
    Cause(
        "torchsurv",
        r"Expected a 'cuda' device type for generator but found 'cpu'|test_cpu_device_preserved.*'cuda' == 'cpu'",
        Kind.AS_ON_A_GPU,
        "the default device is cuda, and the test expects the CPU or shuffles with a generator of the CPU",
    ),
    Cause(
        "evotorch",
        r"test_take_best_with_multiobj.*two devices, cuda:0 and cpu",
        Kind.AS_ON_A_GPU,
        "the default device is cuda, and the project creates the test's tensors on the CPU",
    ),
    Cause(
        "higher",
        r"Double backwards is not supported for CuDNN RNNs",
        Kind.AS_ON_A_GPU,
        "the test differentiates the gradient of an RNN, which cuDNN does not support",
    ),
    Cause("", r"name 'transforms' is not defined", Kind.ENVIRONMENT, "torchvision is not installed"),
    Cause("", r"EADDRINUSE", Kind.ENVIRONMENT, "another process used the test's port"),
    Cause("", r"Failed: Timeout", Kind.SLOW, f"values are computed on the CPU, and the test took more than {TEST_S} s"),
    _REFUSED,
    _UNKNOWN,
)


def run(suite: Suite, folder: Path, gpu: str) -> dict[str, Outcome]:
    """Run a suite on the CPU, or on the virtual GPU `gpu`, and return the result of each test."""
    results = folder / f"{suite.folder}.{'gpu' if gpu else 'cpu'}.jsonl"
    here = folder / suite.folder if suite.source != "package" else folder
    paths = [str(PROGRAMS), *([str(here / suite.import_from)] if suite.import_from else []), *_PYTHONPATH]
    environment = {
        **os.environ,
        **suite.variables,
        **(suite.on_gpu if gpu else {}),
        **{"SUITE_RESULTS": str(results), "SUITE_SAMPLE": str(suite.sample), "PYTHONPATH": os.pathsep.join(paths)},
        **{"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "suite_results", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "--tb=short", f"--timeout={TEST_S}", *suite.options[bool(gpu)], *suite.tests]
    command += ["--gpu", gpu] if gpu else []
    for _ in range(STARTS):
        ended = _watched(command, here, environment, results)
        lines = _lines(results)
        if not lines or "outcome" in lines[-1] or "collection" in lines[-1]:
            break
        with results.open("a") as file:
            file.write(json.dumps({"test": lines[-1]["test"], "outcome": ended, "message": ""}) + "\n")
    return outcomes(results)


def _watched(command: Sequence[str], here: Path, environment: dict[str, str], results: Path) -> str:
    """Run a process until it ends or hangs, and return how it ended."""
    with (results.with_suffix(".log")).open("a") as log:
        process = subprocess.Popen(command, cwd=here, env=environment, stdout=log, stderr=subprocess.STDOUT)
        started = time.time()
        while process.poll() is None:
            time.sleep(1)
            written = results.stat().st_mtime if results.exists() else started
            if time.time() - max(written, started) > SILENT_S:
                process.kill()
                process.wait()
                return "hung"
    return f"died ({process.returncode})"


def _lines(results: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def outcomes(results: Path) -> dict[str, Outcome]:
    ended: dict[str, Outcome] = {}
    for line in _lines(results):
        how = line.get("outcome", "")
        if not how or (line["test"] in ended and ended[line["test"]].how == "failed"):
            continue
        if "xfail" in line:
            how = "xfailed"
        elif line.get("refused") and how == "skipped":
            how = "refused"
        ended[line["test"]] = Outcome(how, line["message"])
    return ended


def on_cpu(test: str) -> str:
    """Convert the id of a test on "cuda" to the id of the same test on the CPU."""
    return re.sub(r"cuda(:0|_0)?", "cpu", test).replace("CUDA::", "CPU::")


@dataclass
class Comparison:
    """Contains the test results of one suite on the CPU and on the virtual GPU."""

    suite: Suite
    cpu: dict[str, Outcome]
    gpu: dict[str, Outcome]

    def pairs(self) -> Iterable[tuple[str, Outcome, Outcome]]:
        by_id = {on_cpu(test): outcome for test, outcome in self.cpu.items()}
        for test, there in self.gpu.items():
            yield test, self.cpu.get(test) or by_id.get(on_cpu(test), Outcome("absent")), there

    def differences(self) -> dict[Cause, list[str]]:
        """Return the tests that fail on the virtual GPU but not on the CPU, by cause."""
        found: dict[Cause, list[str]] = defaultdict(list)
        for test, here, there in self.pairs():
            if there.how not in ("passed", "skipped", "xfailed") and here.how in (*BOTH, *CUDA_ONLY):
                found[cause_of(self.suite.name, test, there)].append(test)
        return found

    def ends(self, *here: str) -> Counter[str]:
        """Count the results on the virtual GPU of tests with the given results on the CPU, and count failures by cause."""
        counted: Counter[str] = Counter()
        for test, cpu, there in self.pairs():
            if cpu.how in here:
                fine = there.how in ("passed", "skipped", "xfailed")
                counted[there.how if fine else cause_of(self.suite.name, test, there).kind.name] += 1
                counted["dead"] += there.how.startswith(("died", "hung"))
        return counted


WRONG = (Kind.NOT_EMULATED, Kind.LIMIT, Kind.UNKNOWN)
BOTH, CUDA_ONLY = ("passed", "xfailed"), ("skipped", "absent")


def cause_of(suite: str, test: str, ended: Outcome) -> Cause:
    text = f"{test}: {ended.how} {ended.message}"
    return next(each for each in CAUSES if each.suite in (suite, "") and re.search(each.pattern, text, re.DOTALL))


def row(each: Comparison) -> str:
    both, only = each.ends(*BOTH), each.ends(*CUDA_ONLY)
    passed = both["passed"] + both["xfailed"]
    right = passed + both[Kind.AS_ON_A_GPU.name]
    ran = right + sum(both[kind.name] for kind in WRONG)
    new_passed = only["passed"] + only["xfailed"] + only[Kind.AS_ON_A_GPU.name]
    new = new_passed + sum(only[kind.name] for kind in WRONG)
    skipped = both["skipped"] + only["skipped"]
    failing = sum(outcome.how == "failed" for outcome in each.cpu.values())
    return _line((
        f"{each.suite.name} {each.suite.version}", ran, passed, right - passed, _percent(right, ran),
        new, new_passed, only[Kind.NOT_EMULATED.name], _percent(new_passed, new), skipped, failing, both["dead"] + only["dead"],
    ))  # fmt: skip


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def download(folder: Path) -> None:
    for suite in SUITES:
        if suite.source == "sdist" and not (folder / suite.folder).is_dir():
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "-d", str(folder)]
            subprocess.run([*pip, f"{suite.name}=={suite.version}"], check=True)
            subprocess.run(["tar", "xzf", str(next(folder.glob(f"{suite.folder}.tar.gz"))), "-C", str(folder)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--gpu", default="a100")
    parser.add_argument("--download", action="store_true", help="get the sources that PyPI has")
    parser.add_argument("--stored", action="store_true", help="run nothing and report the stored results")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if asked.download:
        download(folder)
    compared = []
    for suite in SUITES:
        files = [folder / f"{suite.folder}.{where}.jsonl" for where in ("cpu", "gpu")]
        if asked.only not in ("", suite.name) or not all(file.exists() or not asked.stored for file in files):
            continue
        if not asked.stored:
            for where in ("", asked.gpu):
                run(suite, folder, where)
        compared.append(Comparison(suite, *map(outcomes, files)))
        print(row(compared[-1]), flush=True)
    if asked.write:
        asked.write.write_text(page(compared, asked.gpu, asked.write.read_text() if asked.write.exists() else ""))


_COLUMNS = (
    "suite", "run on both", "pass", "fail as on a GPU", "right", "CUDA only", "of these, pass", "of these, NotEmulated",
    "of these, share that passes", "skipped", "fail on the CPU too", "died or hung",
)  # fmt: skip
HEAD = """# Test suites of other projects

This page shows the results of test suites that ran once on the CPU and once on a virtual GPU. The [pytest plugin](gpu_tests.md)
emulates the GPU (`--gpu {gpu}`) and computes real values. Of a large test suite, only a random sample of the tests runs.
`python benchmarks/suites.py FOLDER --write docs/suites.md` writes this page. The script also contains the source, sample size
and options of each suite (SUITES).

| column | meaning |
|---|---|
| run on both | tests that pass on the CPU, and run on the virtual GPU |
| right | share of these tests that pass on the virtual GPU, or fail as on a GPU |
| CUDA only | tests that run on the virtual GPU, and that the CPU skips or does not have |
| skipped | tests that the suite skips on the virtual GPU, such as tests for the CPU only |

The table counts only tests that finished both on the CPU and on the virtual GPU, with any result. If a file or package is
missing, the test is skipped, and only the table "Differences" counts it.

"""
AFTER = """
## Differences

| suite | tests | what happens | cause | an example |
|---|---|---|---|---|
"""


def page(compared: Sequence[Comparison], gpu: str, before: str) -> str:
    """Return the page. For suites without results, the rows are copied from the existing page `before`."""
    results, _, differences = before.partition("## Differences")
    lines = [HEAD.format(gpu=gpu) + _line(_COLUMNS), "|---" * len(_COLUMNS) + "|"]
    lines += [
        *(rows for suite in SUITES for rows in _rows(suite, compared, results, lambda each: [row(each)])),
        AFTER.rstrip("\n"),
    ]
    lines += [rows for suite in SUITES for rows in _rows(suite, compared, differences, _differences)]
    return "\n".join(lines) + "\n"


def _rows(suite: Suite, compared: Sequence[Comparison], before: str, rows: Callable[[Comparison], list[str]]) -> Iterable[str]:
    with_results = [each for each in compared if each.suite is suite]
    if with_results:
        return rows(with_results[0])
    return [line for line in before.splitlines() if line.startswith(f"| {suite.name} ")]


def _differences(each: Comparison) -> list[str]:
    found = sorted(each.differences().items(), key=lambda found: found[0].kind.name)
    examples = [(cause, len(tests), tests[0].replace("|", "\\|")) for cause, tests in found]
    return [_line((each.suite.name, count, cause.kind.value, cause.text, f"`{test}`")) for cause, count, test in examples]


if __name__ == "__main__":
    main()

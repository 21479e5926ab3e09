"""Tests that the examples are plain scripts that run natively on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpt import GPT
from images import SyntheticImages
from resnet import ResNet, resnet18, resnet50
from train_gpt import SyntheticText

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


SMALL = "--device cpu --image-size 32 --batch-size 4 --steps 3 --print-every 2"
SMALL_GPT = "--device cpu --layers 2 --width 32 --heads 4 --context 16 --vocabulary 64 --batch-size 4 --steps 3 --print-every 2"


@pytest.mark.parametrize(
    ("words", "first", "unit"),
    [
        (f"train_resnet.py {SMALL} --model resnet18 --workers 1", "training resnet18, batch 4, on CPU", "images"),
        (f"train_dataparallel.py {SMALL} --workers 0", "training resnet18, batch 4, replicas: 1", "images"),
        (f"train_ddp.py {SMALL} --workers 0", "training resnet18, batch 4 per process, processes: 1", "images"),
        (
            f"-m torch.distributed.run --standalone --nproc-per-node=2 train_ddp.py {SMALL} --workers 0",
            "training resnet18, batch 4 per process, processes: 2",
            "images",
        ),
        (f"train_gpt.py {SMALL_GPT} --workers 1", "training a GPT of 2 layers in bf16, batch 4, on CPU", "tokens"),
        (
            f"train_gpt.py {SMALL_GPT} --workers 0 --precision fp16",
            "training a GPT of 2 layers in fp16, batch 4, on CPU",
            "tokens",
        ),
    ],
)
def test_a_script_trains_on_the_cpu(tmp_path: Path, words: str, first: str, unit: str) -> None:
    run = [str(EXAMPLES / word) if word.endswith(".py") else word for word in words.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # without this variable, torchrun would set it and print a message
    done = subprocess.run([sys.executable, "-W", "error", *run], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    found, *steps = done.stdout.splitlines()
    assert found == first
    assert [re.sub(r"[\d.]+ \w+/s", f"R {unit}/s", re.sub(r"loss [\d.]+", "loss L", step)) for step in steps] == [
        f"step    2  loss L  R {unit}/s",
        f"step    3  loss L  R {unit}/s",
    ]


def test_synthetic_text_is_predictable_and_the_same_at_every_access() -> None:
    text = SyntheticText(length=100, context=64, vocabulary=32)
    tokens, targets = text[7]
    assert torch.equal(tokens[1:], targets[:-1]) and torch.equal(tokens, text[7][0])
    assert not torch.equal(tokens, text[8][0])
    follows = (text.follower[tokens] == targets).float().mean()
    assert 0.6 < float(follows) < 1


def test_a_gpt_reads_only_earlier_tokens_and_has_the_published_size() -> None:
    model = GPT(vocabulary=50, context=12, width=16, heads=2, layers=2).eval()
    tokens = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 50
    same = (model(tokens) == model(changed)).all(dim=2)[0]
    assert same[:8].all() and not same[8:].any()
    block = 4 * 16 + 4 * 16 * 16 + 4 * 16 + 8 * 16 * 16 + 5 * 16  # norms, attention and perceptron of a block
    assert sum(parameter.numel() for parameter in model.parameters()) == (50 + 12) * 16 + 2 * block + 2 * 16


@pytest.mark.parametrize(("make", "parameters", "convolutions"), [(resnet18, 11_689_512, 20), (resnet50, 25_557_032, 53)])
def test_the_resnets_have_the_published_parameters_and_layers(
    make: Callable[[], ResNet], parameters: int, convolutions: int
) -> None:
    with torch.device("meta"):
        model = make()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert sum(isinstance(module, torch.nn.Conv2d) for module in model.modules()) == convolutions
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)
    names = list(model.state_dict())
    assert names[:2] == ["conv1.weight", "bn1.weight"] and names[-2:] == ["fc.weight", "fc.bias"]
    assert {"layer2.0.downsample.1.running_var", "layer4.1.bn2.bias"} <= set(names)


def test_a_bottleneck_block_has_its_stride_in_the_3x3_convolution() -> None:
    with torch.device("meta"):
        block = resnet50().layer2[0]
    strides = [block.get_submodule(name).stride for name in ("conv1", "conv2", "conv3")]
    assert strides == [(1, 1), (2, 2), (1, 1)]


def test_synthetic_images_depend_only_on_their_index() -> None:
    images = SyntheticImages(length=300, classes=10, size=64, distinct=8)
    first, label = images[3]
    assert first.shape == (3, 64, 64) and first.dtype == torch.float32 and 0 <= label < 10
    assert len(images) == 300
    assert torch.equal(first, images[3][0])
    assert torch.equal(first, SyntheticImages(length=300, classes=10, size=64, distinct=8)[3][0])
    assert not torch.equal(first, images[3 + 8][0])  # both use the same stored image, but it is cropped or flipped differently
    assert abs(float(first.mean())) < 3 and float(first.std()) > 0.1

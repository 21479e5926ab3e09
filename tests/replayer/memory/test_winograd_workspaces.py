"""Tests that cuDNN's workspaces have the sizes of a V100 recording (ResNet-50, batch 32, PyTorch 1.9)."""

from __future__ import annotations

import pytest

from replayer.memory.scratch_memory import winograd_workspaces
from replayer.op_signature import OpSignature
from traces.model.layouts import Shape

MIB = 1 << 20


def forward(channels: int, side: int, dtype: str = "float32", window: int = 3, result_side: int = 0) -> OpSignature:
    image, weight = (32, channels, side, side), (channels, channels, window, window)
    result = (32, channels, result_side or side, result_side or side)
    return OpSignature("aten::convolution", (image, weight), (dtype,) * 2, (result,))


def backward(channels: int, side: int, outputs: tuple[Shape, ...]) -> OpSignature:
    image, weight = (32, channels, side, side), (channels, channels, 3, 3)
    return OpSignature("aten::convolution_backward", (image, image, weight), ("float32",) * 3, outputs)


# The recording shows a block of 58.0 MiB for the third workspace. Its requested size is 57.375 MiB.
@pytest.mark.parametrize(("channels", "side", "mib"), [(256, 14, 45.0), (512, 7, 54.0), (128, 28, 57.375)])
def test_convolution_workspaces_have_recorded_sizes_in_both_passes(channels: int, side: int, mib: float) -> None:
    taken = (round(mib * MIB), -round(mib * MIB))
    assert winograd_workspaces(forward(channels, side)) == ((), taken)
    image, weight = (32, channels, side, side), (channels, channels, 3, 3)
    assert winograd_workspaces(backward(channels, side, (image, weight))) == ((), taken, taken)
    # The first layer has a bias.
    assert winograd_workspaces(backward(channels, side, (weight, (channels,)))) == ((), taken, ())


def test_with_64_channels_only_the_weight_gradient_uses_a_workspace() -> None:
    taken = (round(110.8125 * MIB), -round(110.8125 * MIB))
    assert winograd_workspaces(forward(64, 56)) == ()
    assert winograd_workspaces(backward(64, 56, ((32, 64, 56, 56), (64, 64, 3, 3)))) == ((), (), taken)


@pytest.mark.parametrize(
    "signature",
    [
        forward(256, 14, "float16"),
        forward(256, 14, window=1),
        forward(256, 14, result_side=7),  # This convolution has stride 2.
        forward(32, 112),
        # This convolution has groups.
        OpSignature("aten::convolution", ((32, 256, 14, 14), (256, 8, 3, 3)), ("float32",) * 2, ((32, 256, 14, 14),)),
        OpSignature("aten::mm", ((256, 256), (256, 256)), ("float32",) * 2, ((256, 256),)),
    ],
)
def test_ops_other_than_winograd_convolutions_take_no_winograd_workspace(signature: OpSignature) -> None:
    assert winograd_workspaces(signature) == ()

"""Tests the table of GPU models, and how a model is found by its name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.model.machine import DeviceProperties
from traces.model.trace import Device, TraceError
from traces.names.cards import CARDS, UNKNOWN_CARD, Card, card_of, find_card, is_slice, known_properties


@pytest.mark.parametrize(
    ("name", "copy_gbps", "ring_gbps"),
    [
        ("Tesla P100-PCIE-16GB", 12.6, 12.6),
        ("Tesla P100-SXM2-16GB", 18.4, 64),  # 18.3 GB/s were measured between two GPUs
        ("Tesla V100-SXM2-32GB", 46, 120),  # 47.9 GB/s were measured between two GPUs
        ("Tesla V100-PCIE-16GB", 12.6, 12.6),
        ("NVIDIA A100-SXM4-80GB", 276, 240),  # NCCL's own limit is 235 GB/s
        ("NVIDIA A100-PCIE-40GB", 25.2, 25.2),
        ("NVIDIA A100 80GB PCIe", 25.2, 25.2),
        ("NVIDIA A10", 25.2, 25.2),
        ("NVIDIA L40S", 25.2, 25.2),
        ("Tesla T4", 12.6, 12.6),
        ("NVIDIA H100 80GB HBM3", 414, 360),  # NCCL's authors measured 370 GB/s
        ("NVIDIA H100 PCIe", 50.4, 50.4),
        ("NVIDIA H200", 414, 360),
        ("NVIDIA B200", 828, 720),
        ("AMD Instinct MI300X", 58.88, 358.4),
        ("", 12.6, 12.6),
    ],
)
def test_the_link_between_two_equal_gpus_has_the_published_bandwidth(name: str, copy_gbps: float, ring_gbps: float) -> None:
    link = card_of(name).link
    assert (link.copy_gbps, link.ring_gbps) == pytest.approx((copy_gbps, ring_gbps))
    assert link.hop_ns == (600 if ring_gbps > 60 else 1_000)


NAMES = [(name, card) for card in CARDS for name in card.names]


@pytest.mark.parametrize(("name", "card"), NAMES, ids=[name for name, _ in NAMES])
def test_every_name_of_a_gpu_model_is_found(name: str, card: Card) -> None:
    assert card_of(name) is card
    assert sum(name in of.names for of in CARDS) == 1
    assert card_of(name.removeprefix("NVIDIA ").removeprefix("AMD ").removeprefix("Tesla ")) is card


@given(st.sampled_from(NAMES), st.sampled_from(["", "NVIDIA ", "GRID "]), st.sampled_from(["", " VF", "-N"]))
def test_additional_words_around_a_gpu_name_are_ignored(of: tuple[str, Card], before: str, behind: str) -> None:
    assert card_of(before + of[0] + behind) is of[1]


def test_a_mig_slice_has_a_share_of_the_gpu() -> None:
    whole, part = card_of("NVIDIA A100-SXM4-40GB"), card_of("NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    assert part.names == whole.names and part.architecture == whole.architecture
    assert part.multi_processors == 46 and part.tflops["bf16"] == pytest.approx(312 * 3 / 7)
    assert part.memory_gbps / whole.memory_gbps == pytest.approx(part.memory_bytes / whole.memory_bytes, rel=1e-6)
    assert part.memory_bytes / whole.memory_bytes == pytest.approx(0.5, abs=0.02)
    assert card_of("NVIDIA A30 MIG 1g.6gb").multi_processors == card_of("NVIDIA A30").multi_processors // 4
    assert card_of("NVIDIA A100-SXM4-40GB MIG 7g.40gb").tflops == whole.tflops
    assert card_of("a card nobody knows MIG 1g.5gb") is card_of("a card nobody knows")


MODELS = [(name, card) for name, card in NAMES if len(name.removeprefix("AMD Instinct ").removeprefix("NVIDIA ").split()) == 1]


@given(st.sampled_from([of for of in MODELS if of[0].replace(" ", "").isalnum()]), st.sampled_from("SGX09Z"))
def test_a_gpu_name_with_a_different_letter_is_a_different_model(of: tuple[str, Card], letter: str) -> None:
    assert card_of(of[0] + letter) is not of[1]


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("A100-SXM-80GB", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        ("NVIDIA A100-PG509-200", "NVIDIA A100-SXM4-40GB"),
        ("Tesla V100-SXM2-16GB-N", "Tesla V100-SXM2-16GB"),
        ("AMD Instinct MI300X VF", "AMD Instinct MI300X"),
        ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 3090 Ti"),
        ("GeForce RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA RTX A6000", "NVIDIA RTX A6000"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada Generation"),
        ("AMD Instinct MI250X / MI250", "AMD Instinct MI250X"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", ""),
        ("NVIDIA GeForce RTX 4080 SUPER", ""),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", ""),
        ("AMD Radeon Graphics", ""),
        ("a card nobody knows", ""),
    ],
)
def test_device_names_find_the_right_gpu_model(name: str, means: str) -> None:
    assert card_of(name).names[0] == means


def test_the_gpu_table_has_plausible_values() -> None:
    assert len(CARDS) >= 30
    for card in (*CARDS, UNKNOWN_CARD):
        assert card.source and {"fp64", "fp32"} <= card.tflops.keys()
        assert 100 < card.memory_gbps < 10_000 and card.memory_bytes > 7 << 30 and card.multi_processors > 0
        assert card.tflops.get("tf32", 1e9) >= card.tflops["fp32"] <= card.tflops.get("fp16", 1e9)
        assert card.properties.major == card.architecture.major


def test_recorded_properties_override_the_data_sheet() -> None:
    known = known_properties(Device(0, 0, "NVIDIA RTX A6000", properties=DeviceProperties(multi_processor_count=83)))
    assert (known.major, known.minor, known.multi_processor_count) == (8, 6, 83)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("v100", "Tesla V100-SXM2-16GB"),
        ("V100 PCIe", "Tesla V100-PCIE-16GB"),
        ("v100-pcie-32gb", "Tesla V100-PCIE-32GB"),
        ("rtx6000", "Quadro RTX 6000"),
        ("rtx 6000 ada", "NVIDIA RTX 6000 Ada Generation"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("1080ti", "NVIDIA GeForce GTX 1080 Ti"),
        ("a10", "NVIDIA A10"),
        ("a40", "NVIDIA A40"),
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("mi300x", "AMD Instinct MI300X"),
    ],
)
def test_a_gpu_model_is_found_by_names_that_people_type(typed: str, name: str) -> None:
    assert find_card(typed).names[0] == name


def test_every_gpu_model_is_found_by_each_of_its_names() -> None:
    assert all(find_card(name) is card for card in CARDS for name in card.names)


def test_an_unknown_gpu_name_is_reported_with_similar_names() -> None:
    with pytest.raises(TraceError, match=r"unknown GPU: gtx1080; did you mean NVIDIA GeForce GTX 1080 Ti or "):
        find_card("gtx1080")
    with pytest.raises(TraceError, match=r"unknown GPU: \(empty name\); give a name such as V100, .* or RTX 4090$"):
        find_card(" ")
    with pytest.raises(TraceError, match="unknown GPU: Ti; "):  # a variant without a model name
        find_card("Ti")
    assert all(find_card(name) in CARDS for name in ("V100", "T4", "A100", "H100", "L4", "RTX 4090"))


def test_a_cuda_context_takes_2_kib_per_gpu_thread() -> None:
    """The sizes were measured in github.com/pytorch/pytorch/issues/28394 and github.com/unslothai/unsloth-zoo/pull/1053."""
    assert find_card("titan v").context_bytes == 320 << 20
    assert find_card("rtx 6000 ada").context_bytes == 426 << 20
    assert find_card("mi300x").context_bytes == 0


@pytest.mark.parametrize(
    ("name", "capability", "threads", "shared_kib", "optin_kib"),
    [
        # The CUDA C++ Programming Guide lists these limits for each compute capability.
        ("Tesla P100-PCIE-16GB", (6, 0), 2048, 64, 48),
        ("Tesla V100-SXM2-16GB", (7, 0), 2048, 96, 96),
        ("Tesla T4", (7, 5), 1024, 64, 64),
        ("NVIDIA A100-SXM4-40GB", (8, 0), 2048, 164, 163),
        ("NVIDIA GeForce RTX 3090", (8, 6), 1536, 100, 99),
        ("NVIDIA L4", (8, 9), 1536, 100, 99),
        ("NVIDIA H100 80GB HBM3", (9, 0), 2048, 228, 227),
    ],
)
def test_a_gpu_has_the_properties_of_its_compute_capability(
    name: str, capability: tuple[int, int], threads: int, shared_kib: int, optin_kib: int
) -> None:
    """All these GPUs have 65,536 registers, warps of 32 threads, and by default 48 KiB of shared memory per block."""
    of = card_of(name).properties
    assert (of.major, of.minor) == capability and of.max_threads_per_multi_processor == threads
    assert of.shared_memory_per_multiprocessor == shared_kib * 1024
    assert of.shared_memory_per_block_optin == optin_kib * 1024
    assert of.shared_memory_per_block == 49_152
    assert (of.regs_per_multiprocessor, of.warp_size, of.max_threads_per_block) == (65_536, 32, 1024)


@pytest.mark.parametrize(
    ("name", "cache_mib", "uses_winograd"),
    [
        ("Tesla V100-SXM2-16GB", 6, True),
        ("NVIDIA A100-SXM4-80GB", 40, False),  # an A100 uses TF32 tensor cores instead of Winograd
        ("AMD Instinct MI250X", 8, False),
        ("AMD Instinct MI300X", 256, False),  # the Infinity Cache, which is larger than the L2 cache
    ],
)
def test_the_cache_size_and_the_convolution_algorithm_depend_on_the_gpu_model(
    name: str, cache_mib: int, uses_winograd: bool
) -> None:
    card = card_of(name)
    assert card is not None and (card.cache_bytes, card.uses_winograd) == (cache_mib << 20, uses_winograd)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("NVIDIA A100-SXM4-80GB MIG 1g.10gb", True), ("NVIDIA A100-SXM4-80GB", False), ("NVIDIA Q7 MIG 1g.10gb", False)],
)
def test_a_slice_has_the_name_of_a_known_gpu_and_a_mig_profile(name: str, expected: bool) -> None:
    assert is_slice(name) is expected

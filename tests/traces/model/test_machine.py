"""Tests that the recorded facts about a machine are stored, loaded, and converted to and from Kineto's names."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from traces.combining.merge import merge_ranks
from traces.format import items as contents
from traces.format.trace_file import load, save
from traces.kineto import read_kineto
from traces.model.machine import DeviceProperties, Machine, TorchSettings, from_kineto, hip_version, runtime_version, to_kineto
from traces.model.trace import Device, Trace
from traces.model.typed_json import from_json, to_json

MACHINE = Machine(torch="2.13.0+cu126", cuda="12.6", cudnn=91002, settings=TorchSettings(tf32_cudnn=True, deterministic=False))
KINETO = {"computeMajor": 8, "computeMinor": 6, "numSms": 84, "warpSize": 32, "sharedMemPerBlockOptin": 101_376}


def test_equal_machines_are_stored_once(tmp_path: Path) -> None:
    ranks = [Trace(devices=[Device(0, 0, "GPU")], machines={0: MACHINE}) for _ in range(3)]
    ranks[2].machines = {0: Machine(torch="2.12.0")}
    trace = merge_ranks(ranks)
    save(trace, tmp_path / "t.msgpack")
    assert load(tmp_path / "t.msgpack").machines == {0: MACHINE, 1: MACHINE, 2: Machine(torch="2.12.0")}
    assert len(contents._machine_values(trace.machines)) == 2
    assert trace.machine_of(7) == MACHINE and Trace().machine_of(0) == Machine()


def test_device_properties_are_converted_to_kineto_names_and_back() -> None:
    properties = from_kineto(KINETO | {"id": 0, "name": "GPU", "totalGlobalMem": 5, "regsPerBlock": 65_536})
    assert properties.multi_processor_count == 84 and properties.shared_memory_per_block_optin == 101_376
    assert to_kineto(properties) == KINETO
    assert from_kineto({"major": 7, "multiProcessorCount": 80, "warpSize": "32"}) == DeviceProperties(
        major=7, multi_processor_count=80
    )
    assert (runtime_version(12040), runtime_version(10020), runtime_version("12")) == ("12.4", "10.2", None)
    assert (hip_version(60443483), hip_version(0)) == ("6.4.43483", None)


def test_missing_device_properties_can_be_filled_from_others() -> None:
    own = DeviceProperties(major=8)
    assert own.completed_by(DeviceProperties(major=7, minor=5)) == DeviceProperties(major=8, minor=5)


class _OtherApi:
    """Fakes a backend whose TF32 setting was changed by PyTorch's newer setting. Reading the older setting then fails."""

    def __init__(self, precision: str) -> None:
        self.fp32_precision = precision

    @property
    def allow_tf32(self) -> bool:
        raise RuntimeError("do not mix the settings allow_tf32 and fp32_precision")


@pytest.mark.parametrize(("by_torch", "by_cudnn", "expected"), [(0, 0, False), (1, 0, True), (0, 1, True), (1, 1, True)])
def test_the_settings_of_a_process_are_read_from_torch(
    monkeypatch: pytest.MonkeyPatch, by_torch: int, by_cudnn: int, expected: bool
) -> None:
    """GIVEN a process in which PyTorch or cuDNN must be deterministic THEN the setting `deterministic` is true."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "older")
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    cudnn = SimpleNamespace(allow_tf32=True, benchmark=False, deterministic=bool(by_cudnn))
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=_OtherApi("tf32")), cudnn=cudnn)
    torch = SimpleNamespace(backends=backends, are_deterministic_algorithms_enabled=lambda: bool(by_torch))
    assert TorchSettings.of_process(torch) == TorchSettings(True, True, False, expected, "older")
    backends.cuda.matmul = _OtherApi("ieee")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "newer")
    found = TorchSettings.of_process(torch)
    assert (found.tf32_matmul, found.allocator) == (False, "newer")


def test_an_unknown_number_of_the_compute_capability_counts_as_zero() -> None:
    assert DeviceProperties(major=8, minor=6).capability == (8, 6) and DeviceProperties(major=9).capability == (9, 0)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"cudnn": "9"}, "Machine.cudnn: '9' is not of type int"),
        ({"settings": {"tf32_matmul": 1}}, "Machine.settings: TorchSettings.tf32_matmul: 1 is not of type bool"),
        ([], "Machine is list, not an object"),
    ],
)
def test_an_invalid_machine_raises_an_error(values: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_json(Machine, values)


def test_machine_json_omits_unknown_fields_and_ignores_new_ones() -> None:
    values = json.loads(json.dumps(to_json(MACHINE)))
    assert values.keys() == {"torch", "cuda", "cudnn", "settings"}
    assert from_json(Machine, values | {"of_tomorrow": 1}) == MACHINE


def test_an_import_reads_device_properties_and_software_versions(shared_traces: Path) -> None:
    trace = read_kineto(shared_traces / "a100_nccl_args_rank0of2.json.gz")
    assert trace.devices[0].properties.multi_processor_count == 108
    assert (trace.machine_of(0).nccl, trace.machine_of(0).torch) == ("2.17.1", "2.4 or newer")


@pytest.mark.parametrize(
    ("torch", "older"),
    [
        ("1.9.0", True),
        ("1.8 to 1.9", True),
        ("1.8 to 1.10", True),
        ("1.10 to 1.11", False),
        ("1.13 to 2.3", False),
        ("2.13.0+cu126", False),
        ("1.8 or newer", False),
        (None, False),
    ],
)
def test_is_before_returns_true_only_for_a_known_older_torch_release(torch: str | None, older: bool) -> None:
    assert Machine(torch=torch).is_before(1, 11) is older


@pytest.mark.parametrize(
    ("torch", "release"),
    [("2.13.0+cu126", (2, 13)), ("1.8.1", (1, 8)), ("2.4", None), ("1.8 to 1.10", None), ("", None), (None, None)],
)
def test_the_torch_release_is_read_from_a_complete_version(torch: str | None, release: tuple[int, int] | None) -> None:
    assert Machine(torch=torch).release == release


@pytest.mark.parametrize(("number", "version"), [(12040, "12.4"), (11080, "11.8"), (1000, "1.0"), (999, None), ("12.4", None)])
def test_a_cuda_version_number_is_converted_to_major_and_minor_version(number: object, version: str | None) -> None:
    assert runtime_version(number) == version


@pytest.mark.parametrize(
    ("number", "version"),
    [(60443483, "6.4.43483"), (70_100_001, "7.1.1"), (10_000_000, "1.0.0"), (9_999_999, None), (6e7, None)],
)
def test_hip_versions_have_three_parts(number: object, version: str | None) -> None:
    assert hip_version(number) == version

# mypy: allow-untyped-calls
"""Tests the random states of torch.cuda. Each test runs in a fork of an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable

import pytest
import torch

from tests.replayer.fake_gpu import use


def test_rng_states_have_the_size_and_layout_of_cuda() -> None:
    use()
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    assert bytes(state.tolist()) == (5).to_bytes(8, "little") + bytes(8)


def test_rng_states_can_be_saved_in_a_checkpoint_and_restored() -> None:
    use(devices=2)
    torch.cuda.manual_seed_all(11)
    torch.cuda.manual_seed(12)
    file = io.BytesIO()
    torch.save({"cuda": torch.cuda.get_rng_state_all()}, file)
    torch.cuda.manual_seed_all(0)
    file.seek(0)
    torch.cuda.set_rng_state_all(torch.load(file)["cuda"])
    assert [g.initial_seed() for g in torch.cuda.default_generators] == [12, 11]


def test_a_seed_set_before_cuda_is_initialised_is_used() -> None:
    use(devices=2)
    torch.manual_seed(3)
    torch.cuda.manual_seed(4)
    assert torch.cuda.initial_seed() == 4
    torch.cuda.set_device(1)
    assert torch.cuda.initial_seed() == 3


def test_the_default_seed_equals_that_of_pytorch() -> None:
    use()
    assert torch.cuda.initial_seed() == 67280421310721


def test_seed_all_gives_all_devices_one_new_seed() -> None:
    use(devices=2)
    torch.cuda.init()
    torch.cuda.seed_all()
    seeds = {g.initial_seed() for g in torch.cuda.default_generators}
    assert len(seeds) == 1 and seeds != {67280421310721}
    torch.cuda.seed()
    torch.seed()


def test_fork_rng_restores_the_states_of_the_devices() -> None:
    use()
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0]):
        torch.manual_seed(2)
        assert torch.cuda.initial_seed() == 2
    assert torch.cuda.initial_seed() == 1


def test_torch_generator_creates_generators_of_the_device() -> None:
    use(devices=2)
    generator = torch.Generator(device="cuda:1").manual_seed(9)
    assert generator.device == torch.device("cuda", 1)
    assert isinstance(generator, torch.Generator)
    assert torch.Generator("cuda").device == torch.device("cuda", 0)
    assert torch.Generator().device == torch.Generator(None).device == torch.device("cpu")
    assert torch.randn(3, device="cuda", generator=torch.Generator("cuda")).shape == (3,)
    copied = pickle.loads(pickle.dumps(generator))
    assert copied.initial_seed() == 9 and copied.device == generator.device
    assert generator.clone_state().initial_seed() == 9


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        ([0] * 12, "RuntimeError", "RNG state is wrong size"),
        ([0.0] * 16, "TypeError", "RNG state must be a torch.ByteTensor"),
    ],
)
def test_invalid_generator_states_are_rejected_with_the_message_of_torch(state: list[float], error: str, text: str) -> None:
    use()
    with pytest.raises((RuntimeError, TypeError), match=text) as caught:
        torch.cuda.default_generators[0].set_state(
            torch.tensor(state, dtype=torch.uint8 if error == "RuntimeError" else torch.float32)
        )
    assert type(caught.value).__name__ == error


def test_the_state_of_a_generator_contains_its_offset() -> None:
    use()
    torch.cuda.init()
    torch.cuda._set_rng_state_offset(8)
    state = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(0)
    torch.cuda.set_rng_state(state)
    assert torch.cuda._get_rng_state_offset() == 8


def test_the_philox_offset_advances_as_much_as_in_the_kernels_of_pytorch() -> None:
    """On a V100, a launch has 640 blocks of 256 threads. Each thread draws 4 numbers in a round, so 10 000 002 elements take 16
    rounds. For 8-byte types, a thread draws 2 numbers in a round, so 31 rounds are needed."""
    use(multi_processor_count=80, max_threads_per_multi_processor=2048)
    generator = torch.cuda.default_generators[0]

    def advanced_by(draw: Callable[[], object]) -> int:
        generator.manual_seed(0)
        draw()
        return generator.get_offset()

    many = torch.zeros(10_000_002, device="cuda")
    assert advanced_by(lambda: torch.zeros(2, device="cuda").uniform_()) == 4
    assert advanced_by(many.normal_) == 16 * 4
    assert advanced_by(many.double().normal_) == 31 * 4
    assert advanced_by(lambda: torch.nn.functional.dropout(many, 0.5)) == 16 * 4
    assert advanced_by(lambda: torch.poisson(many)) == 20
    assert advanced_by(lambda: torch.randperm(1000, device="cuda")) == 4 + 1000
    assert advanced_by(lambda: torch.zeros(0, device="cuda").normal_()) == 0


def test_random_numbers_advance_only_the_generator_that_is_used() -> None:
    use(devices=2)
    torch.cuda.manual_seed_all(1)
    before, mine = torch.get_rng_state(), torch.Generator("cuda").manual_seed(3)
    torch.rand(3, device="cuda", generator=mine)
    torch.rand(3, device="cuda:1")
    assert torch.equal(torch.get_rng_state(), before)
    assert [g.get_offset() for g in (mine, *torch.cuda.default_generators)] == [4, 0, 4]


def test_a_generator_of_a_different_device_is_rejected() -> None:
    use()
    on_gpu, on_cpu = torch.Generator("cuda"), torch.Generator()
    x = torch.zeros(3, device="cuda")
    host = torch.ones(3)
    for draw in (
        lambda: torch.rand(3, generator=on_gpu),
        lambda: torch.normal(0.0, 1.0, (3,), generator=on_gpu),
        lambda: host.normal_(generator=on_gpu),
        lambda: torch.randperm(3, generator=on_gpu),
        lambda: torch.rrelu(host, training=True, generator=on_gpu),
        lambda: torch._standard_gamma(host, generator=on_gpu),
        lambda: torch.ops.aten.bernoulli(host, generator=on_gpu),
        lambda: torch.nn.init.trunc_normal_(host, generator=on_gpu),
        lambda: torch.utils.data.random_split(torch.utils.data.TensorDataset(host), [1, 2], on_gpu),
    ):
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
            draw()
    for draw in (lambda: torch.randperm(3, device="cuda", generator=on_cpu), lambda: x.uniform_(generator=on_cpu)):
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
            draw()
    x.uniform_(generator=on_gpu)
    with torch.device("cuda"):
        assert torch.randperm(3, generator=on_gpu).is_cuda


def test_graph_safe_generator_states_share_one_offset() -> None:
    use()
    generator = torch.Generator("cuda").manual_seed(3)
    shared, copied = generator.graphsafe_get_state(), generator.clone_state()
    torch.rand(3, device="cuda", generator=generator)
    assert (shared.get_offset(), copied.get_offset()) == (4, 0)
    generator.graphsafe_set_state(copied)
    assert generator.get_offset() == 0
    assert generator.set_offset(8) is generator
    with pytest.raises(RuntimeError, match=r"^Expected a CUDA Generator$"):
        generator.graphsafe_set_state(torch.Generator())
    with pytest.raises(TypeError, match=r"^expected a Generator, but got NoneType$"):
        generator.graphsafe_set_state(None)  # type: ignore[arg-type]


def test_a_generator_of_a_missing_device_is_rejected() -> None:
    use(devices=2)
    assert torch.Generator("cuda:1").device == torch.device("cuda", 1)
    with pytest.raises(RuntimeError, match=r"^The device_index is invalid\.$"):
        torch.Generator("cuda:2")

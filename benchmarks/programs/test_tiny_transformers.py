# mypy: ignore-errors
"""Tests a tiny model of each family in transformers on the CPU and on the GPU (a suite of benchmarks/suites.py).

    python -m pytest [--gpu a100] benchmarks/programs/test_tiny_transformers.py

The result, the gradients of the loss and a training step must be equal on the GPU and on the CPU. Without a GPU, the tests
compare two runs on the CPU. Model families whose configuration cannot be reduced by the rules below fail on the CPU too.
"""

from __future__ import annotations

import copy
import io

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModel, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE, PATCH = 32, 4, 2, 99, 32, 8

_SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "embedding_size", "projection_dim"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_heads", "num_key_value_heads", "n_heads"), HEADS),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("num_decoder_layers",), LAYERS),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 2 * WIDTH),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), WIDTH),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size"), WIDTH // HEADS),
    **dict.fromkeys(("vocab_size",), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("image_size",), IMAGE),
    **dict.fromkeys(("patch_size",), PATCH),
    **dict.fromkeys(("pad_token_id",), 0),
    **dict.fromkeys(("bos_token_id",), 1),
    **dict.fromkeys(("eos_token_id",), 2),
}


def _tiny(kind: type[PretrainedConfig]) -> PretrainedConfig:
    usual = kind()
    changes = {}
    for name, value in vars(usual).items():
        if isinstance(value, PretrainedConfig):
            changes[name] = _tiny(type(value)).to_dict()
        elif name in _SIZES and isinstance(value, int) and not isinstance(value, bool):
            changes[name] = min(value, _SIZES[name])
        elif isinstance(value, float) and "dropout" in name:
            changes[name] = 0.0
    if "layer_types" in vars(usual) and usual.layer_types:
        changes["layer_types"] = usual.layer_types[-LAYERS:]
    return kind(**changes)


def _inputs(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    name = model.main_input_name
    torch.manual_seed(0)
    if name == "input_ids":
        given = {name: torch.randint(3, 90, (2, 9))}
    elif name == "pixel_values":
        given = {name: torch.rand(2, getattr(model.config, "num_channels", 3), IMAGE, IMAGE)}
    elif name == "input_values":
        given = {name: torch.rand(2, 1600)}
    else:
        given = {name: torch.rand(2, getattr(model.config, "num_mel_bins", 80), 64)}
    if hasattr(model.config, "vision_config") and hasattr(model.config, "text_config"):
        given.setdefault("input_ids", torch.randint(3, 90, (2, 9)))
        given["pixel_values"] = torch.rand(2, 3, IMAGE, IMAGE)
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(3, 90, (2, 5))
    return given


def _model(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModel.from_config(_tiny(CONFIG_MAPPING[family])).eval()


def _floats(output: object) -> list[torch.Tensor]:
    return [value for value in output.to_tuple() if isinstance(value, torch.Tensor) and value.is_floating_point()]


def _on(device: str, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to(device) for name, value in given.items()}


def _assert_same(there: list[torch.Tensor], here: list[torch.Tensor], close: float = 1e-4) -> None:
    assert len(there) == len(here) and here
    for one, other in zip(there, here, strict=True):
        assert one.device.type == DEVICE
        torch.testing.assert_close(one.cpu().float(), other.float(), rtol=close, atol=close, equal_nan=True)


@pytest.fixture(scope="module", params=sorted(set(MODEL_MAPPING_NAMES) & set(CONFIG_MAPPING)))
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    return _model(request.param)


def test_result(model: torch.nn.Module) -> None:
    given = _inputs(model)
    with torch.no_grad():
        here = _floats(model(**given))
        there = _floats(copy.deepcopy(model).to(DEVICE)(**_on(DEVICE, given)))
    _assert_same(there, here)


def test_training_step(model: torch.nn.Module) -> None:
    results = []
    for device in ("cpu", DEVICE):
        trained = copy.deepcopy(model).to(device)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
        given = _on(device, _inputs(model))
        before, losses = [parameter.detach().clone() for parameter in trained.parameters()], []
        for _ in range(2):
            loss = sum(value.square().mean() for value in _floats(trained(**given)))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        assert any(not torch.equal(old, new) for old, new in zip(before, trained.parameters(), strict=True))
        results.append([*losses, *(parameter.detach() for parameter in trained.parameters())])
    _assert_same(results[1], [value.cpu() for value in results[0]], 1e-3)


def test_autocast(model: torch.nn.Module) -> None:
    given = _inputs(model)
    with torch.no_grad():
        here = _floats(model(**given))
        with torch.autocast(DEVICE, torch.bfloat16):
            there = _floats(copy.deepcopy(model).to(DEVICE)(**_on(DEVICE, given)))
    assert [value.shape for value in there] == [value.shape for value in here]


def test_save_and_load(model: torch.nn.Module) -> None:
    there = copy.deepcopy(model).to(DEVICE)
    file = io.BytesIO()
    torch.save(there.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, map_location="cpu")
    for name, value in model.state_dict().items():
        assert torch.equal(loaded[name], value)

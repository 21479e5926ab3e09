"""Trains and evaluates compiled public models, for benchmarks/compiled.py, which compares Dynamo's counters with native runs.

    python -m benchmarks.programs.compiled_models cpu aot_eager            # natively
    trace replay ... -m benchmarks.programs.compiled_models cuda inductor

The models come from timm, transformers, diffusers, torchtune and torchvision. Models of libraries that are not installed are
left out. The environment variable MODEL_SOURCES names a folder with nanogpt.py (model.py of nanoGPT) and modded_nanogpt.py
(train_gpt_simple.py of modded-nanogpt).
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo
from torch import nn

from tests.replayer.compiled.programs import PROGRAMS, Compiler, main

TIMM = (
    "adv_inception_v3", "beit_base_patch16_224", "convnext_base", "deit_base_distilled_patch16_224", "ghostnet_100",
    "mobilenetv2_100", "mobilenetv3_large_100", "mobilevit_s", "nfnet_l0", "repvgg_a2", "swin_base_patch4_window7_224",
    "tf_efficientnet_b0", "vit_base_patch16_224", "volo_d1_224", "resnet18", "visformer_small",
)  # fmt: skip
TRANSFORMERS = (
    "AlbertForMaskedLM", "BartForCausalLM", "BertForMaskedLM", "BertForQuestionAnswering", "BlenderbotSmallForCausalLM",
    "DebertaV2ForMaskedLM", "DistilBertForMaskedLM", "ElectraForCausalLM", "GPT2LMHeadModel", "GPT2ForSequenceClassification",
    "LlamaForCausalLM", "LayoutLMForMaskedLM", "LayoutLMForSequenceClassification", "M2M100ForConditionalGeneration",
    "MT5ForConditionalGeneration", "MegatronBertForCausalLM", "MobileBertForMaskedLM", "OPTForCausalLM",
    "PegasusForConditionalGeneration", "PLBartForConditionalGeneration", "RobertaForCausalLM", "T5ForConditionalGeneration",
    "TrOCRForCausalLM", "XGLMForCausalLM", "XLNetLMHeadModel", "Qwen3ForCausalLM", "MixtralForCausalLM",
    "ModernBertForMaskedLM",
)  # fmt: skip
SMALL = {
    "vocab_size": 128, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embedding_size": 32,
    "word_embed_proj_dim": 32,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "n_head": 2, "n_heads": 2, "num_heads": 2,
    "attention_heads": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "head_dim": 16, "d_kv": 16,
    "d_head": 16,
    "intermediate_size": 64, "hidden_dim": 64, "d_ff": 64, "ffn_dim": 64, "d_inner": 64, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
    "num_local_experts": 4, "true_hidden_size": 32, "intra_bottleneck_size": 32, "num_buckets": 8, "use_cache": False,
    "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip


def train(model: nn.Module, compiled: Any, *inputs: Any, **options: Any) -> str:
    """Trains three steps and evaluates twice. Returns the class of the result."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        loss_of(compiled(*inputs, **options)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            result = compiled(*inputs, **options)
    return type(result).__name__


def loss_of(result: Any) -> torch.Tensor:
    loss = getattr(result, "loss", None)
    if loss is not None:
        return loss
    first = result if isinstance(result, torch.Tensor) else result[-1] if isinstance(result, tuple) else result[0]
    return first.float().mean()


def of_timm(name: str, compiler: Compiler) -> str:
    import timm

    model = timm.create_model(name, num_classes=8).to(compiler.device)
    return train(model, compiler(model), compiler.tensor(2, *model.default_cfg["input_size"]))


def of_transformers(name: str, compiler: Compiler) -> str:
    import transformers

    kind = getattr(transformers, name)
    defaults = kind.config_class()
    config = kind.config_class(**{key: value for key, value in SMALL.items() if hasattr(defaults, key)})
    config.use_cache = False
    model = kind(config).to(compiler.device)
    tokens = torch.full((2, 16), 5, dtype=torch.long, device=compiler.device)
    tokens[:, -1] = getattr(config, "eos_token_id", 0) or 0
    config.decoder_start_token_id = 0
    options = {"input_ids": tokens, "labels": tokens}
    if name.endswith("QuestionAnswering"):
        position = torch.ones(2, dtype=torch.long, device=compiler.device)
        options = {"input_ids": tokens, "start_positions": position, "end_positions": position}
    elif name.endswith("SequenceClassification"):
        options["labels"] = torch.ones(2, dtype=torch.long, device=compiler.device)
    return train(model, compiler(model), **options)


def of_torchvision(name: str, compiler: Compiler) -> str:
    import torchvision

    model = torchvision.models.get_model(name, num_classes=8, weights=None).to(compiler.device)
    return train(model, compiler(model), compiler.tensor(2, 3, 224, 224))


def unet_of_diffusers(compiler: Compiler) -> str:
    from diffusers import UNet2DConditionModel

    down, up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    model = UNet2DConditionModel(
        sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=16, norm_num_groups=8,
        down_block_types=down, up_block_types=up,
    ).to(compiler.device)  # fmt: skip
    steps = torch.tensor([1, 2], device=compiler.device)
    return train(model, compiler(model), compiler.tensor(2, 4, 16, 16), steps, compiler.tensor(2, 4, 16), return_dict=False)


def transformer_of_diffusers(compiler: Compiler) -> str:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=2, sample_size=8, patch_size=2,
        num_embeds_ada_norm=10, norm_num_groups=4,
    ).to(compiler.device)  # fmt: skip
    steps = torch.tensor([1, 2], device=compiler.device)
    labels = {"timestep": steps, "class_labels": steps, "return_dict": False}
    return train(model, compiler(model), compiler.tensor(2, 4, 8, 8), **labels)


def autoencoder_of_diffusers(compiler: Compiler) -> str:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(32,), norm_num_groups=8).to(compiler.device)
    return train(model, compiler(model), compiler.tensor(2, 3, 16, 16), return_dict=False)


def llama_of_torchtune(compiler: Compiler) -> str:
    """As in torchtune's recipes, each layer is compiled in place, with activation checkpointing and a chunked loss."""
    from torchtune.models.llama3 import llama3
    from torchtune.modules import TransformerSelfAttentionLayer
    from torchtune.training import set_activation_checkpointing

    sizes = {"vocab_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "embed_dim": 32, "max_seq_len": 32}
    model = llama3(**sizes, intermediate_dim=64).to(compiler.device)
    set_activation_checkpointing(model, auto_wrap_policy={TransformerSelfAttentionLayer})
    for module in reversed(list(model.modules())):
        if isinstance(module, TransformerSelfAttentionLayer):
            module.compile(backend=compiler.backend)
    tokens = torch.zeros(2, 16, dtype=torch.long, device=compiler.device)
    return train(model, model, tokens)


def lora_of_torchtune(compiler: Compiler) -> str:
    from torchtune.models.llama3 import lora_llama3

    sizes = {"vocab_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "embed_dim": 32, "max_seq_len": 32}
    model = lora_llama3(["q_proj", "v_proj"], **sizes, intermediate_dim=64, lora_rank=4, lora_alpha=8).to(compiler.device)
    return train(model, compiler(model), torch.zeros(2, 16, dtype=torch.long, device=compiler.device))


def _definitions(file: str, until: str) -> SimpleNamespace:
    """Run the source of a script up to a given line, to leave out the training loop."""
    source = (Path(os.environ["MODEL_SOURCES"]) / file).read_text().partition(until)[0]
    path = Path(os.environ["MODEL_SOURCES"]) / f"definitions_of_{file}"
    path.write_text(source)
    names: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    sys.modules[path.stem] = SimpleNamespace(**names)  # dataclasses look their module up
    exec(compile(source, path, "exec"), names)
    return SimpleNamespace(**names)


def nanogpt(compiler: Compiler) -> str:
    of = _definitions("nanogpt.py", "\0")
    sizes = {"block_size": 32, "vocab_size": 64, "n_layer": 2, "n_head": 2, "n_embd": 32}
    model = of.GPT(of.GPTConfig(**sizes)).to(compiler.device)
    tokens = torch.zeros(2, 32, dtype=torch.long, device=compiler.device)
    compiled = compiler(model)
    with torch.autocast(compiler.device, torch.bfloat16):
        return train(model, compiled, tokens, tokens)


def modded_nanogpt(compiler: Compiler) -> str:
    """Compile the model in place, and also the update of the Muon optimizer."""
    of = _definitions("modded_nanogpt.py", "class Muon(")
    model = of.GPT(vocab_size=64, num_layers=2, model_dim=256).to(compiler.device)
    model.compile(dynamic=False, backend=compiler.backend)
    tokens = torch.zeros(2, 16, dtype=torch.long, device=compiler.device)
    said = train(model, model, tokens, tokens)
    update = compiler(of.muon_update.__wrapped__ if hasattr(of.muon_update, "__wrapped__") else of.muon_update)
    for weight in [p for p in model.blocks.parameters() if p.ndim >= 2]:
        update(torch.ones_like(weight), torch.zeros_like(weight))
    return said


def pyramid_of_torchvision(compiler: Compiler) -> str:
    """Trains the backbone of a detector. The rest of the detector is left out, because its results depend on values that a
    replay does not compute."""
    import torchvision

    model = torchvision.models.get_model("retinanet_resnet50_fpn", weights=None, weights_backbone=None, num_classes=4)
    model = model.backbone.to(compiler.device)
    return train(model, compiler(lambda x: sum(level.mean() for level in model(x).values())), compiler.tensor(1, 3, 64, 64))


TORCHVISION = "alexnet", "mnasnet1_0", "shufflenet_v2_x1_0", "squeezenet1_1", "densenet121"
FAMILIES = (
    ("timm", TIMM, of_timm),
    ("transformers", TRANSFORMERS, of_transformers),
    ("torchvision", TORCHVISION, of_torchvision),
)
SINGLE = {
    "diffusers": (unet_of_diffusers, transformer_of_diffusers, autoencoder_of_diffusers),
    "torchtune": (llama_of_torchtune, lora_of_torchtune),
    "torchvision": (pyramid_of_torchvision,),
}


def models() -> dict[str, Any]:
    """Return the programs of the libraries that are installed."""
    found: dict[str, Any] = {}
    for library, names, program in FAMILIES:
        if find_spec(library):
            found |= {name: lambda compiler, name=name, program=program: program(name, compiler) for name in names}
    for library, programs in SINGLE.items():
        found |= {program.__name__: program for program in programs} if find_spec(library) else {}
    if "MODEL_SOURCES" in os.environ:
        found |= {"nanogpt": nanogpt, "modded_nanogpt": modded_nanogpt}
    return found


if __name__ == "__main__":
    PROGRAMS.clear()
    PROGRAMS.update(models())
    main()

"""Functionalize whole models of torchvision, timm, diffusers and transformers, and print a table with causes.

    pip install torchvision timm diffusers transformers
    python tests/bench/functionalize_models.py [--only timm] [--dtype bfloat16] [--jobs 2] [--forms forms.pickle]

Models are built from their configurations, without weights, in eval mode. A row says whether the form agrees with its
module, and which operators the offline writer's draft for a CPU leaves to the library (views aside); a second table
counts what stopped the fusion. A package that is not installed is left out, and said so. With --forms the functional
forms are kept in a file and read from there the next time. Exit code 1 when a model failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import pickle
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rag_kernels.eval.records import Problem
from rag_kernels.ingest.functional.functionalize import Row, functionalize_many, open_workers
from rag_kernels.offline.compose import first_plans
from rag_kernels.offline.tuning import starting_parameters

_CLASS = re.compile(r"\b[A-Z]\w+(?=\()")
TORCHVISION = (
    "alexnet vgg11 resnet18 resnext50_32x4d wide_resnet50_2 densenet121 squeezenet1_1 mobilenet_v2 mobilenet_v3_small "
    "efficientnet_b0 efficientnet_v2_s convnext_tiny mnasnet0_5 regnet_y_400mf shufflenet_v2_x1_0 swin_t swin_v2_t "
    "maxvit_t vit_b_32 googlenet inception_v3"
).split()
TIMM = (
    "resnet26 resnetv2_50 efficientnet_lite0 mobilenetv3_small_100 mobilenetv4_conv_small ghostnet_100 mixer_s32_224 "
    "gmlp_ti16_224 resmlp_12_224 convmixer_768_32 convnext_atto convnextv2_atto vit_tiny_patch16_224 "
    "deit_tiny_patch16_224 cait_xxs24_224 xcit_nano_12_p16_224 levit_128s pit_ti_224 poolformer_s12 edgenext_xx_small "
    "mobilevit_xxs repvgg_a0 rexnet_100 hrnet_w18_small res2net50_14w_8s eca_nfnet_l0 nfnet_f0 visformer_tiny "
    "coat_lite_tiny twins_pcpvt_small fastvit_t8 hgnet_tiny inception_next_tiny regnety_002 tf_efficientnet_b0"
).split()
IDS = "torch.randint(0, 128, (BATCH, LENGTH))"
IMAGE = "torch.randn(BATCH, 3, 32, 32)"
TRANSFORMERS = {
    "bert": (
        (
            "BertModel(BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128))"
        ),
        IDS,
    ),
    "roberta": (
        (
            "RobertaModel(RobertaConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, max_position_embeddings=200))"
        ),
        IDS,
    ),
    "distilbert": (
        ("DistilBertModel(DistilBertConfig(vocab_size=128, dim=64, n_layers=2, n_heads=4, hidden_dim=128))"),
        IDS,
    ),
    "albert": (
        (
            "AlbertModel(AlbertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, embedding_size=32))"
        ),
        IDS,
    ),
    "electra": (
        (
            "ElectraModel(ElectraConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, embedding_size=32))"
        ),
        IDS,
    ),
    "mpnet": (
        (
            "MPNetModel(MPNetConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, max_position_embeddings=200))"
        ),
        IDS,
    ),
    "deberta_v2": (
        (
            "DebertaV2Model(DebertaV2Config(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, relative_attention=True, pos_att_type=['p2c', "
            "'c2p']))"
        ),
        IDS,
    ),
    "modernbert": (
        (
            "ModernBertModel(ModernBertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, pad_token_id=0))"
        ),
        IDS,
    ),
    "gpt2": (
        "GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, use_cache=False))",
        IDS,
    ),
    "gpt_neox": (
        (
            "GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, use_cache=False))"
        ),
        IDS,
    ),
    "opt": (
        (
            "OPTModel(OPTConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, "
            "ffn_dim=128, word_embed_proj_dim=64, use_cache=False))"
        ),
        IDS,
    ),
    "bloom": (
        "BloomModel(BloomConfig(vocab_size=128, hidden_size=64, n_layer=2, n_head=4, use_cache=False))",
        IDS,
    ),
    "llama": (
        (
            "LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False))"
        ),
        IDS,
    ),
    "mistral": (
        (
            "MistralForCausalLM(MistralConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False, "
            "sliding_window=16))"
        ),
        IDS,
    ),
    "mixtral": (
        (
            "MixtralForCausalLM(MixtralConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False, "
            "num_local_experts=4))"
        ),
        IDS,
    ),
    "qwen2": (
        (
            "Qwen2ForCausalLM(Qwen2Config(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False))"
        ),
        IDS,
    ),
    "qwen3": (
        (
            "Qwen3ForCausalLM(Qwen3Config(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False, "
            "head_dim=16))"
        ),
        IDS,
    ),
    "gemma": (
        (
            "GemmaForCausalLM(GemmaConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False, "
            "head_dim=16))"
        ),
        IDS,
    ),
    "gemma2": (
        (
            "Gemma2ForCausalLM(Gemma2Config(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False, "
            "head_dim=16, sliding_window=16))"
        ),
        IDS,
    ),
    "phi3": (
        (
            "Phi3ForCausalLM(Phi3Config(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False, "
            "pad_token_id=0))"
        ),
        IDS,
    ),
    "olmo2": (
        (
            "Olmo2ForCausalLM(Olmo2Config(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False, "
            "pad_token_id=0))"
        ),
        IDS,
    ),
    "granite": (
        (
            "GraniteForCausalLM(GraniteConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False))"
        ),
        IDS,
    ),
    "starcoder2": (
        (
            "Starcoder2ForCausalLM(Starcoder2Config(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, num_key_value_heads=2, use_cache=False))"
        ),
        IDS,
    ),
    "gptj": (
        (
            "GPTJForCausalLM(GPTJConfig(vocab_size=128, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=64, "
            "use_cache=False))"
        ),
        IDS,
    ),
    "beit": (
        (
            "BeitModel(BeitConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, "
            "image_size=32, patch_size=8, use_relative_position_bias=True))"
        ),
        IMAGE,
    ),
    "longformer": (
        (
            "LongformerModel(LongformerConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, attention_window=8, max_position_embeddings=64))"
        ),
        IDS,
    ),
    "falcon": (
        (
            "FalconForCausalLM(FalconConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, use_cache=False))"
        ),
        IDS,
    ),
    "mamba": (
        ("MambaForCausalLM(MambaConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, use_cache=False))"),
        IDS,
    ),
    "t5_encoder": (
        ("T5EncoderModel(T5Config(vocab_size=128, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4))"),
        IDS,
    ),
    "bart": (
        (
            "BartModel(BartConfig(vocab_size=128, d_model=64, encoder_layers=2, decoder_layers=2, "
            "encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,"
            " use_cache=False))"
        ),
        IDS,
    ),
    "vit": (
        (
            "ViTModel(ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, "
            "intermediate_size=128, image_size=32, patch_size=8))"
        ),
        IMAGE,
    ),
    "dinov2": (
        (
            "Dinov2Model(Dinov2Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, "
            "image_size=32, patch_size=8))"
        ),
        IMAGE,
    ),
    "clip_vision": (
        (
            "CLIPVisionModel(CLIPVisionConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, "
            "intermediate_size=128, image_size=32, patch_size=8))"
        ),
        IMAGE,
    ),
    "siglip_vision": (
        (
            "SiglipVisionModel(SiglipVisionConfig(hidden_size=64, num_hidden_layers=2, "
            "num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8))"
        ),
        IMAGE,
    ),
    "segformer": (
        (
            "SegformerModel(SegformerConfig(hidden_sizes=[16, 32, 32, 64], num_attention_heads=[1, 2, 2, 4],"
            " depths=[1, 1, 1, 1]))"
        ),
        "torch.randn(BATCH, 3, 64, 64)",
    ),
    "wav2vec2": (
        (
            "Wav2Vec2Model(Wav2Vec2Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, "
            "intermediate_size=128))"
        ),
        "torch.randn(BATCH, 4000)",
    ),
    "whisper_encoder": (
        (
            "WhisperModel(WhisperConfig(vocab_size=128, d_model=64, encoder_layers=2, decoder_layers=2, "
            "encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,"
            " max_source_positions=50, pad_token_id=0)).encoder"
        ),
        "torch.randn(BATCH, 80, 100)",
    ),
}
DIFFUSERS = {
    "unet2d": (
        (
            "UNet2DModel(sample_size=16, down_block_types=('DownBlock2D', 'AttnDownBlock2D'), "
            "up_block_types=('AttnUpBlock2D', 'UpBlock2D'), block_out_channels=(32, 64), layers_per_block=1,"
            " norm_num_groups=8)"
        ),
        "torch.randn(BATCH, 3, 16, 16), 7",
    ),
    "unet2d_condition": (
        (
            "UNet2DConditionModel(sample_size=16, cross_attention_dim=32, attention_head_dim=8, "
            "down_block_types=('DownBlock2D', 'CrossAttnDownBlock2D'), up_block_types=('CrossAttnUpBlock2D',"
            " 'UpBlock2D'), block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8)"
        ),
        "torch.randn(BATCH, 4, 16, 16), 7, torch.randn(BATCH, 5, 32)",
    ),
    "autoencoder_kl_decoder": (
        (
            "AutoencoderKL(block_out_channels=(32, 64), down_block_types=('DownEncoderBlock2D',) * 2, "
            "up_block_types=('UpDecoderBlock2D',) * 2, norm_num_groups=8).decoder"
        ),
        "torch.randn(BATCH, 4, 16, 16)",
    ),
    "autoencoder_tiny": (
        (
            "AutoencoderTiny(encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16), "
            "num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1))"
        ),
        "torch.randn(BATCH, 3, 16, 16)",
    ),
    "dit": (
        (
            "DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=16, in_channels=4, "
            "num_layers=2, sample_size=16, patch_size=2)"
        ),
        "torch.randn(BATCH, 4, 16, 16), torch.tensor([3, 4]), torch.tensor([1, 2])",
    ),
    "sd3": (
        (
            "SD3Transformer2DModel(sample_size=16, patch_size=2, in_channels=4, num_layers=2, "
            "attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, "
            "caption_projection_dim=32, pooled_projection_dim=16, out_channels=4, pos_embed_max_size=16)"
        ),
        ("torch.randn(BATCH, 4, 16, 16), torch.randn(BATCH, 5, 32), torch.randn(BATCH, 16), torch.tensor([3, 4])"),
    ),
    "flux": (
        (
            "FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, "
            "attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=16,"
            " axes_dims_rope=(4, 6, 6))"
        ),
        (
            "torch.randn(BATCH, 64, 4), torch.randn(BATCH, 5, 32), torch.randn(BATCH, 16), "
            "torch.rand(BATCH), torch.rand(64, 3), torch.rand(5, 3)"
        ),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only models whose name contains this")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--forms", type=Path, default=None)
    asked = parser.parse_args()
    known: dict[str, Row] = pickle.loads(asked.forms.read_bytes()) if asked.forms and asked.forms.exists() else {}
    chosen = [p for p in problems(asked.dtype) if asked.only in p.name]
    outcomes: Counter[str] = Counter()
    stopped: Counter[str] = Counter()
    print("| model | form | seconds | left to the library | stopped by | notice |\n|---|---|--:|---|---|---|")
    for row in rows(chosen, known, asked.jobs):
        outcome = outcome_of(row)
        outcomes[outcome] += 1
        library, stops = left(row) if outcome in {"verified", "not verified"} else ("", ())
        outcomes["every operator ours"] += library == "nothing"
        stopped.update(set(stops))
        said = row.reason if row.functional is None else row.functional.notice
        cells = (row.name, outcome, f"{row.seconds:.0f}", library, ", ".join(stops), said)
        print(f"| {' | '.join(cells)} |", flush=True)
        if asked.forms:
            known[row.name] = row
            asked.forms.write_bytes(pickle.dumps(known))
    print(f"\n{len(chosen)} models: " + ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common()))
    print("\n| stopped by | models |\n|---|--:|")
    for reason, count in stopped.most_common():
        print(f"| {reason} | {count} |")
    return 1 if outcomes["failed"] else 0


def rows(chosen: list[Problem], known: dict[str, Row], jobs: int) -> Iterator[Row]:
    """Yield a row for each problem: those that are known first."""
    yield from (known[p.name] for p in chosen if p.name in known)
    with open_workers() as workers:
        missing = [p for p in chosen if p.name not in known]
        yield from functionalize_many(missing, workers=workers, jobs=jobs, deadline_s=400.0)


def outcome_of(row: Row) -> str:
    form = row.functional
    if form is None:
        return "failed"
    return "random" if form.uses_random else "verified" if form.verified else "not verified"


def left(row: Row) -> tuple[str, tuple[str, ...]]:
    """Return what the draft that leaves least to the library leaves to it, and what stopped the fusion there."""
    assert row.functional is not None
    best = min(
        first_plans(row.functional, starting_parameters("cpu")), key=lambda plan: len(plan.library), default=None
    )
    if best is None:
        return "everything", ()
    counted = Counter(best.library)
    return ", ".join(f"{n} {name}" for name, n in counted.most_common()) or "nothing", best.stopped


def problems(dtype: str) -> Iterator[Problem]:
    """Yield a problem for each model of the packages that are installed."""
    image = "torch.randn(BATCH, 3, SIZE, SIZE)"
    families = {
        "torchvision": {n: (f"models.{n}(weights=None{_extra(n)})", image) for n in TORCHVISION},
        "timm": {n: (f"timm.create_model({n!r}, pretrained=False)", image) for n in TIMM},
        "transformers": TRANSFORMERS,
        "diffusers": DIFFUSERS,
    }
    heads = {
        "torchvision": "from torchvision import models",
        "timm": "import timm",
        "transformers": "from transformers import {names}",
        "diffusers": "from diffusers import {names}",
    }
    for package, models in families.items():
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed: its {len(models)} models are left out.")
            continue
        for name, (made, inputs) in models.items():
            head = heads[package].format(names=", ".join(sorted(set(_CLASS.findall(made)))))
            yield Problem(f"{package}.{name}", text(head, made, inputs, size=_size(name), dtype=dtype))


def _extra(name: str) -> str:
    return ", init_weights=False, aux_logits=False" if name in {"googlenet", "inception_v3"} else ""


def _size(name: str) -> int:
    return 256 if name in {"mobilevit_xxs", "swin_v2_t"} else 299 if name == "inception_v3" else 224


def text(head: str, made: str, inputs: str, *, size: int, dtype: str) -> str:
    """Return a model as a problem: its outputs' tensors, in eval mode, in a dtype."""
    return (
        f"import torch\n{head}\n\nBATCH = 2\nLENGTH = 24\nSIZE = {size}\n\n\n"
        "class Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.net = {made}.to(torch.{dtype}).eval()\n\n"
        "    def forward(self, *inputs):\n        result = self.net(*inputs)\n"
        "        leaves = torch.utils._pytree.tree_leaves(getattr(result, 'to_tuple', lambda: result)())\n"
        "        return [x for x in leaves if isinstance(x, torch.Tensor)]\n\n\n"
        f"def get_inputs():\n    given = [{inputs}]\n"
        f"    kind = torch.{dtype}\n"
        "    return [x.to(kind) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )


if __name__ == "__main__":
    sys.exit(main())

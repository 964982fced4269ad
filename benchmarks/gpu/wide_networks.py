"""Architectures of torchvision and transformers for `cuda-zoo --wide`: random weights, no dropout, small inputs.

Blocks have the widths, groups, windows and masks of their papers; depth, images and texts are small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.cases.zoo import torchvision

if TYPE_CHECKING:
    import torch

ROWS, TOKENS, VOCABULARY = 8, 100, 1003  # the last two are multiples of nothing that a kernel likes
Arguments = dict[str, "torch.Tensor"]


@dataclass(frozen=True)
class Architecture:
    """A module that maps its arguments, by name, to a tensor with a row for each row of the first one."""

    build: Callable[[], torch.nn.Module]
    arguments: Callable[[], Arguments]
    precision: Literal["bfloat16", "float32"]

    def module(self) -> torch.nn.Module:
        """The network in training mode, which draws nothing, with one tensor as its result."""
        import torch

        torch.manual_seed(0)
        body, names = without_draws(self.build().float().train()), tuple(self.arguments())

        class First(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = body

            def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
                named = len(names) > 1 or names[0] != "x"
                return first(self.body(**dict(zip(names, tensors, strict=True))) if named else self.body(*tensors))

        return First()


def without_draws(module: torch.nn.Module) -> torch.nn.Module:
    """Dropout and stochastic depth are switched off."""
    import torch

    for part in module.modules():
        if isinstance(part, torch.nn.Dropout) or type(part).__name__ == "StochasticDepth":
            part.p = 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout", "drop_prob", "layerdrop"):
            if isinstance(vars(part).get(name), float):
                setattr(part, name, 0.0)
        if hasattr(part, "layerdrop"):  # it draws a number even where its rate is 0
            part.training = False
    return module


def first(out: Any) -> torch.Tensor:
    """The tensor of a result, however it is wrapped."""
    import torch

    if isinstance(out, torch.Tensor):
        return out
    if isinstance(out, tuple | list):
        return first(out[0])
    for key in ("logits", "out", "last_hidden_state"):
        if out.get(key) is not None:
            return first(out[key])
    raise TypeError(f"a result with {', '.join(out)} has none of the outputs that are compared")


# -- arguments ---------------------------------------------------------------------------------------------------


def images(*shape: int, name: str = "x") -> Arguments:
    import torch

    return {name: torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(1))}


def tokens(masked: bool = False, decoder: bool = False) -> Arguments:
    """Token numbers; with a padding mask, and with tokens of a decoder, if asked for."""
    import torch

    draw = torch.Generator().manual_seed(1)
    out = {"input_ids": torch.randint(3, VOCABULARY, (ROWS, TOKENS), generator=draw)}
    if masked:
        lengths = torch.randint(TOKENS // 2, TOKENS + 1, (ROWS, 1), generator=draw)
        out["attention_mask"] = (torch.arange(TOKENS) < lengths).long()
    if decoder:
        out["decoder_input_ids"] = torch.randint(3, VOCABULARY, (ROWS, 40), generator=draw)
    return out


def spoken() -> Arguments:
    """Mel features of a Whisper, and the tokens of its decoder."""
    import torch

    draw = torch.Generator().manual_seed(1)
    features = torch.randn(ROWS, 80, 200, generator=draw)
    return {"input_features": features, "decoder_input_ids": torch.randint(3, VOCABULARY, (ROWS, 40), generator=draw)}


# -- builders ----------------------------------------------------------------------------------------------------


def of_torchvision(name: str, **more: Any) -> torch.nn.Module:
    models: Any = torchvision().models
    for part in name.split(".")[:-1]:
        models = getattr(models, part)
    network: torch.nn.Module = getattr(models, name.split(".")[-1])(**more)
    return network


def of_transformers(config: str, model: str, **more: Any) -> torch.nn.Module:
    torchvision()  # imported by transformers
    import transformers

    settings = getattr(transformers, config)(**more)
    for key, value in vars(settings).items():
        if isinstance(value, float) and "drop" in key:
            setattr(settings, key, 0.0)
    for key in ("use_cache", "apply_spec_augment"):
        if hasattr(settings, key):
            setattr(settings, key, False)
    network: torch.nn.Module = getattr(transformers, model)(settings)
    return network


# -- the table ---------------------------------------------------------------------------------------------------

_BACKBONE = {"weights": None, "weights_backbone": None}
_BARE = {"aux_logits": False, "init_weights": False}
_VISION: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {  # name -> (shape of an image, options)
    "alexnet": ((3, 96, 96), {}),
    "vgg11_bn": ((3, 64, 64), {}),
    "resnet18": ((3, 96, 96), {}),
    "resnext50_32x4d": ((3, 96, 96), {}),
    "wide_resnet50_2": ((3, 64, 64), {}),
    "densenet121": ((3, 96, 96), {}),
    "googlenet": ((3, 96, 96), _BARE),
    "inception_v3": ((3, 139, 139), _BARE),
    "squeezenet1_1": ((3, 97, 97), {}),
    "mobilenet_v2": ((3, 96, 96), {}),
    "mobilenet_v3_small": ((3, 96, 96), {}),
    "mnasnet0_5": ((3, 96, 96), {}),
    "shufflenet_v2_x1_0": ((3, 96, 96), {}),
    "efficientnet_v2_s": ((3, 96, 96), {}),
    "regnet_x_400mf": ((3, 96, 96), {}),
    "regnet_y_400mf": ((3, 96, 96), {}),
    "convnext_tiny": ((3, 97, 97), {}),
    "swin_v2_t": ((3, 64, 64), {}),
    "vit_b_32": ((3, 96, 96), {"image_size": 96}),
    "maxvit_t": ((3, 224, 224), {}),
    "segmentation.fcn_resnet50": ((3, 65, 65), _BACKBONE),
    "segmentation.deeplabv3_mobilenet_v3_large": ((3, 96, 96), _BACKBONE),
    "segmentation.lraspp_mobilenet_v3_large": ((3, 96, 96), _BACKBONE),
    "video.r3d_18": ((3, 8, 48, 48), {}),
    "video.mc3_18": ((3, 8, 48, 48), {}),
    "video.r2plus1d_18": ((3, 8, 48, 48), {}),
}
_BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GPT = {"vocab_size": VOCABULARY, "n_positions": 512, "n_embd": 384, "n_layer": 2, "n_head": 6}
_BART: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 256,
    "max_position_embeddings": 512,
    **{f"{part}_layers": 2 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 1024 for part in ("encoder", "decoder")},
}
_VIT: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "image_size": 96,
    "patch_size": 16,
}
_DISTIL = {"vocab_size": VOCABULARY, "dim": 384, "n_layers": 2, "n_heads": 6, "hidden_dim": 1536}
_NEO = {
    "vocab_size": VOCABULARY,
    "hidden_size": 384,
    "num_layers": 2,
    "num_heads": 6,
    "max_position_embeddings": 512,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 32,
}
_T5 = {"vocab_size": VOCABULARY, "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 2, "num_heads": 4}
_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 2, "state_size": 8}
_WHISPER = {**_BART, "num_mel_bins": 80, "max_source_positions": 100, "max_target_positions": 64}
_WHISPER |= {"decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_HEAD: dict[str, Any] = {"head_dim": 64}
_text, _masked, _pairs = tokens, partial(tokens, masked=True), partial(tokens, decoder=True)
_picture = partial(images, 3, 96, 96, name="pixel_values")
_LANGUAGE: dict[str, tuple[Callable[[], Arguments], str, dict[str, Any]]] = {  # name of the classes -> ...
    "GPT2": (_text, "LMHeadModel", _GPT),
    "GPTNeo": (_text, "ForCausalLM", _NEO),
    "GPTNeoX": (_text, "ForCausalLM", _BERT),
    "OPT": (_text, "ForCausalLM", {**_LLAMA, "ffn_dim": 1536, "word_embed_proj_dim": 384}),
    "Bloom": (_masked, "ForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 384, "n_layer": 2, "n_head": 6}),
    "Falcon": (_text, "ForCausalLM", _BERT),
    "Llama": (_masked, "ForCausalLM", _LLAMA),
    "Mistral": (_text, "ForCausalLM", {**_LLAMA, "sliding_window": 48}),
    "Qwen2": (_text, "ForCausalLM", _LLAMA),
    "Qwen3": (_text, "ForCausalLM", {**_LLAMA, **_HEAD}),
    "Gemma2": (_text, "ForCausalLM", {**_LLAMA, **_HEAD}),
    "Phi": (_text, "ForCausalLM", _LLAMA),
    "Phi3": (_text, "ForCausalLM", _LLAMA),
    "Olmo2": (_text, "ForCausalLM", _LLAMA),
    "StableLm": (_text, "ForCausalLM", _LLAMA),
    "Mamba": (_text, "ForCausalLM", _MAMBA),
    "Bert": (_masked, "ForMaskedLM", _BERT),
    "Roberta": (_masked, "ForMaskedLM", {**_BERT, "pad_token_id": 1}),
    "Electra": (_masked, "ForMaskedLM", {**_BERT, "embedding_size": 128}),
    "Albert": (_masked, "ForMaskedLM", {**_BERT, "embedding_size": 128}),
    "DistilBert": (_masked, "ForMaskedLM", _DISTIL),
    "DebertaV2": (_masked, "ForMaskedLM", {**_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "MPNet": (_masked, "ForMaskedLM", _BERT),
    "T5": (_pairs, "ForConditionalGeneration", _T5),
    "Bart": (_pairs, "ForConditionalGeneration", _BART),
    "Whisper": (spoken, "ForConditionalGeneration", _WHISPER),
    "ViT": (_picture, "ForImageClassification", _VIT),
    "DeiT": (_picture, "ForImageClassification", _VIT),
    "Beit": (_picture, "ForImageClassification", {**_VIT, "use_relative_position_bias": True}),
    "Dinov2": (_picture, "ForImageClassification", {**_VIT, "patch_size": 14, "image_size": 98}),
    "ConvNextV2": (_picture, "ForImageClassification", {"hidden_sizes": [40, 80, 160, 320], "depths": [1, 1, 2, 1]}),
    "Segformer": (_picture, "ForSemanticSegmentation", {}),
    "MobileViT": (_picture, "ForImageClassification", {"image_size": 96}),
    "PoolFormer": (_picture, "ForImageClassification", {}),
}


def architectures() -> dict[str, Architecture]:
    """All of them, by name; every third one in float32."""
    rows: dict[str, tuple[Any, Any]] = {
        name: (partial(of_torchvision, name, **more), partial(images, *shape))
        for name, (shape, more) in _VISION.items()
    }
    for name, (arguments, head, more) in _LANGUAGE.items():
        rows[f"{name}{head}"] = (partial(of_transformers, f"{name}Config", f"{name}{head}", **more), arguments)
    return {
        name: Architecture(build, arguments, "float32" if number % 3 == 2 else "bfloat16")
        for number, (name, (build, arguments)) in enumerate(rows.items())
    }

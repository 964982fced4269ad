"""Published weights from a folder in Hugging Face's layout: a `config.json` and weight files."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import CheckpointError, OptionError, TrainingWarning, UsageError
from wholestep.models.bert_model import Bert
from wholestep.models.gpt2 import GPT2
from wholestep.models.llama_model import Llama, RotaryScaling
from wholestep.models.vision_transformer import ViT
from wholestep.nn.module.module import Module
from wholestep.nn.state.weight_files import read_weights
from wholestep.records import dataclass

CONFIG = "config.json"


def load_pretrained(folder: str | PathLike[str], *, strict: bool = True, dtype: object = "float32") -> Any:
    """A model with published weights, from a local folder in the layout of Hugging Face: `config.json`, and
    `model.safetensors`, its shards with their index, or `pytorch_model.bin`.

    Known are `gpt2`, `llama`, `bert` and `vit`; a setting that the model here does not support is an error with its
    name.

    Args:
        folder: a folder that `save_pretrained` wrote, or a download of it.
        strict: refuse unless every array of the model is in the files and the other way round; with False, what fits is
            loaded, and a warning lists the rest.
        dtype: the dtype of the model; half types in the files are widened.

    Example: `model = ws.load_pretrained("checkpoints/gpt2")`.
    """
    place = Path(folder)
    config = read_config(place)
    kind = KINDS.get(str(config.get("model_type")))
    if kind is None:
        fail(
            OptionError,
            f"{place / CONFIG} has model_type {config.get('model_type')!r}; supported: {', '.join(KINDS)}. Build "
            "the model yourself and load the folder: model.load(folder, rename={...}).",
        )
    values = read_weights(place)
    most = _layers_in(kind, values)
    settings = Config(config, place / CONFIG, most if strict else max(most, MOST_LAYERS))
    model = kind.build(settings, dtype)
    report = model.load_state_dict(
        values, strict=strict, rename=_rename_function(kind, {name for name, _ in model.all_names()})
    )
    if report.missing or report.unexpected or report.other_shape:
        warnings.warn(f"{place}: {report}", TrainingWarning, stacklevel=2)
    return model


def read_config(folder: Path) -> dict[str, Any]:
    """Read the `config.json` of a folder."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {CONFIG}: name the folder that save_pretrained wrote.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / CONFIG} cannot be read: {error}.") from error
    except RecursionError:
        raise CheckpointError(f"{folder / CONFIG} cannot be read: its values are nested too deeply.") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{folder / CONFIG} holds a {type(config).__name__}, not a JSON object.")
    return config


class Config:
    """Settings of a `config.json` by name; a missing or unsupported one is an error with its name."""

    def __init__(self, values: Mapping[str, Any], path: Path, most_layers: int = 0) -> None:
        self.values, self.path, self.most_layers = values, path, most_layers

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            raise CheckpointError(f"{self.path} does not set {name!r}, which the model needs.")
        return self.values[name]

    def number(self, name: str, default: int | None = None) -> int:
        """A setting that must be an integer of at least 1; the default if it is missing or null."""
        value = self[name] if default is None else self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{self.path}: {name!r} must be an integer of at least 1; received {value!r}.")
        return value

    def layers(self, name: str) -> int:
        """A number of layers, at most as many as the files hold: building more could take arbitrarily long."""
        asked = self.number(name)
        if asked > self.most_layers:
            raise CheckpointError(
                f"{self.path}: {name!r} is {asked}, and the files hold {self.most_layers} layers; nothing was built. "
                "Correct the configuration, or complete the files."
            )
        return asked

    def positive(self, name: str, default: float | None = None) -> float:
        """A setting that must be a finite number above 0."""
        value = self.real(name, default)
        if value == 0:
            raise CheckpointError(f"{self.path}: {name!r} must be a number above 0; received 0.")
        return value

    def real(self, name: str, default: float | None = None, below: float = math.inf) -> float:
        """A setting that must be a finite number of at least 0; the default if it is missing or null."""
        value = self[name] if default is None else self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < below:
            bound = "" if below == math.inf else f" and below {below:g}"
            raise CheckpointError(f"{self.path}: {name!r} must be a number of at least 0{bound}; received {value!r}.")
        return float(value)

    def inner(self, name: str) -> Config:
        """The nested settings under a name; empty if missing or null."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.path}: {name!r} must be a JSON object; received {value!r}.")
        return Config(value, self.path)

    def architecture(self, default: str) -> str:
        value = self.get("architectures", [default])
        if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], str):
            raise CheckpointError(f"{self.path}: 'architectures' must be a list of one name; received {value!r}.")
        return value[0]

    def need(self, **allowed: object) -> None:
        """Check that each setting, if present, has the one supported value (or one of them)."""
        for name, value in allowed.items():
            supported = value if isinstance(value, tuple) else (value,)
            if name in self.values and self.values[name] not in supported:
                raise UsageError(f"{self.path}: {name} is {self.values[name]!r}; supported: {supported[0]!r}.")

    def get(self, name: str, default: Any) -> Any:
        setting = self.values.get(name)
        return default if setting is None else setting


# regular expressions of names in files -> names in the model; None: the array is not used
Names = Sequence[tuple[str, str | None]]


@dataclass(frozen=True)
class Architecture:
    """How to build a `model_type` and rename its arrays; all matching patterns are applied, in order."""

    build: Callable[[Config, object], Module]
    layer: str  # regular expression that captures the layer number in array names
    names: Names
    parts: str = ""  # regular expression of arrays that the model does not use if it was built without that part


def _rename_function(kind: Architecture, names: set[str]) -> Callable[[str], str | None]:
    patterns = [(re.compile(pattern), new) for pattern, new in kind.names]

    def other(name: str) -> str | None:
        for pattern, new in patterns:
            match = pattern.fullmatch(name)
            if match is not None:
                name = "" if new is None else match.expand(new)
        left_out = name not in names and re.fullmatch(kind.parts, name)
        return None if not name or left_out else name

    return other


MOST_LAYERS = 200  # the most layers that are built with strict=False if the files do not hold them


def _layers_in(kind: Architecture, values: Mapping[str, object]) -> int:
    """The number of layers in the files, from the names of their arrays."""
    matches = (re.match(kind.layer, name) for name in values)
    return len({match[1] for match in matches if match is not None})


def _gpt2(config: Config, dtype: object) -> GPT2:
    width = config.number("n_embd")
    config.need(
        activation_function=("gelu_new", "gelu_pytorch_tanh"),
        layer_norm_epsilon=1e-5,
        n_inner=(None, 4 * width),
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    return GPT2(
        config.layers("n_layer"),
        width,
        config.number("n_head"),
        config.number("vocab_size"),
        config.number("n_positions"),
        config.real("resid_pdrop", 0.0, below=1.0),
        dtype,
    )


def _llama(config: Config, dtype: object) -> Llama:
    heads = config.number("num_attention_heads")
    width = config.number("hidden_size")
    config.need(hidden_act=("silu", "swish"), attention_bias=False, mlp_bias=False, head_dim=(None, width // heads))
    rotary = config.inner("rope_parameters" if config.values.get("rope_parameters") is not None else "rope_scaling")
    scaling = _scaling(rotary, config)
    return Llama(
        config.layers("num_hidden_layers"),
        width,
        heads,
        config.number("num_key_value_heads", heads),
        config.number("intermediate_size"),
        config.number("vocab_size"),
        config.number("max_position_embeddings"),
        rotary.positive("rope_theta", config.positive("rope_theta", 10000.0)),
        config.real("rms_norm_eps", 1e-6),
        bool(config.get("tie_word_embeddings", False)),
        dtype,
        scaling=scaling,
    )


def _scaling(rotary: Config, config: Config) -> RotaryScaling | None:
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RotaryScaling(rotary.positive("factor"))
    if kind != "llama3":
        raise UsageError(f"{config.path}: rotary scaling {kind!r} is none of 'default', 'linear' and 'llama3'.")
    low, high = rotary.real("low_freq_factor"), rotary.real("high_freq_factor")
    if high <= low:
        raise CheckpointError(f"{config.path}: 'high_freq_factor' is above 'low_freq_factor'; they are {high}, {low}.")
    return RotaryScaling(rotary.positive("factor"), rotary.positive("original_max_position_embeddings"), low, high)


BERT_HEADS = {
    "BertModel": None,
    "BertForMaskedLM": "tokens",
    "BertForPreTraining": "tokens",
    "BertForSequenceClassification": "classes",
    "BertForTokenClassification": "token_classes",
    "BertForQuestionAnswering": "spans",
}


def _bert(config: Config, dtype: object) -> Bert:
    config.need(
        hidden_act="gelu",
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    rates = [config.real(name, 0.1, below=1.0) for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")]
    if rates[0] != rates[1]:
        raise UsageError(f"{config.path}: dropout is {rates[0]} of layers, {rates[1]} of attention; set them equal.")
    config.need(classifier_dropout=(None, rates[0]))
    kind = config.architecture("BertModel")
    if kind not in BERT_HEADS:
        raise UsageError(f"{config.path}: the architecture is {kind!r}; supported: {', '.join(BERT_HEADS)}.")
    return Bert(
        config.layers("num_hidden_layers"),
        config.number("hidden_size"),
        config.number("num_attention_heads"),
        config.number("intermediate_size"),
        config.number("vocab_size"),
        config.number("max_position_embeddings"),
        config.number("type_vocab_size"),
        BERT_HEADS[kind],
        _classes(config),
        rates[0],
        config.real("layer_norm_eps", 1e-12),
        dtype,
    )


def _classes(config: Config) -> int:
    """The number of labels; 2 if the configuration does not say, which is the default of transformers."""
    return len(config.inner("id2label").values) or config.number("num_labels", 2)


def _vit(config: Config, dtype: object) -> ViT:
    config.need(
        hidden_act="gelu",
        qkv_bias=True,
        attention_probs_dropout_prob=0.0,
        architectures=(["ViTForImageClassification"], ["ViTModel"], None),
    )
    return ViT(
        config.layers("num_hidden_layers"),
        config.number("hidden_size"),
        config.number("num_attention_heads"),
        config.number("intermediate_size"),
        _classes(config),
        config.number("image_size"),
        config.number("patch_size"),
        config.number("num_channels", 3),
        config.real("hidden_dropout_prob", 0.0, below=1.0),
        config.real("layer_norm_eps", 1e-12),
        dtype,
    )


KINDS: dict[str, Architecture] = {
    "llama": Architecture(
        _llama,
        r"(?:model\.)?layers\.(\d+)\.",
        (
            (r".*\.rotary_emb\.inv_freq", None),  # computed from the base
            (r"(embed_tokens|layers|norm)\.(.*)", r"model.\1.\2"),  # for files of the model without its head
        ),
    ),
    "bert": Architecture(
        _bert,
        r"(?:bert\.)?encoder\.layer\.(\d+)\.",
        (
            (r"(bert\.)?embeddings\.position_ids", None),
            (r"cls\.predictions\.decoder\..*", None),  # the embedding and the bias under a second name
            (r"cls\.seq_relationship\..*", None),  # the head that predicts whether the second text follows the first
            (r"(embeddings|encoder|pooler)\.(.*)", r"bert.\1.\2"),
            (r"(.*LayerNorm)\.gamma", r"\1.weight"),  # names in checkpoints older than PyTorch
            (r"(.*LayerNorm)\.beta", r"\1.bias"),
        ),
        parts=r"bert\.pooler\..*",
    ),
    "vit": Architecture(
        _vit,
        r"(?:vit\.)?encoder\.layer\.(\d+)\.",
        (
            (r"(vit\.)?pooler\..*", None),  # not used for classification
            (r"(embeddings|encoder|layernorm)\.(.*)", r"vit.\1.\2"),
        ),
    ),
    "gpt2": Architecture(
        _gpt2,
        r"(?:transformer\.)?h\.(\d+)\.",
        (
            (r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)", None),  # triangular causal masks
            (r"lm_head\.weight", None),  # the embedding under a second name
            (r"transformer\.(.*)", r"\1"),
        ),
    ),
}

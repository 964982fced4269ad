"""Configurations of strangers: every value of every setting is read or refused by our errors, before layers are built;
scaled rotary positions and the heads of BERT against their formulas."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.models.test_pretrained import BERT, GPT2, LLAMA, TOKENS, VIT, folder_of, others
from wholestep.errors import CheckpointError, UsageError, WholestepError

CONFIGS = {"gpt2": GPT2, "llama": LLAMA, "bert": BERT, "vit": VIT}
LAYERS = {"gpt2": "n_layer", "llama": "num_hidden_layers", "bert": "num_hidden_layers", "vit": "num_hidden_layers"}
WRONG: list[Any] = ["x", [1], {"a": 1}, -1, 0, 1.5, True, None, 10**30, float("nan"), float("inf"), [[[]]], "10"]
SETTINGS = ["rope_scaling", "rope_theta", "architectures", "id2label", "classifier_dropout", "num_labels",
            "tie_word_embeddings", "num_key_value_heads", "hidden_dropout_prob"]  # fmt: skip


def weights_of(kind: str) -> dict[str, torch.Tensor]:
    if kind == "gpt2":
        model = ws.models.gpt2(layers=2, width=8, heads=2, vocabulary=11, context=6)
    else:
        model = others()[kind][1]
    return {name: torch.tensor(array) for name, array in model.state_dict().items()}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("layers", [3000, 10**8, 10**30])
@pytest.mark.parametrize("kind", CONFIGS)
def test_more_layers_than_the_files_hold_are_refused_at_once(
    tmp_path: Path, kind: str, layers: int, strict: bool
) -> None:
    folder = folder_of(tmp_path / kind, {**CONFIGS[kind], LAYERS[kind]: layers}, weights_of(kind))
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=rf"'{LAYERS[kind]}' is {layers}, and the files hold \d+ layers; nothing"):
        ws.load_pretrained(folder, strict=strict)
    assert time.perf_counter() - start < 5.0


def test_a_few_layers_that_are_missing_are_still_built_without_strict(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "llama", {**LLAMA, "num_hidden_layers": 2}, weights_of("llama"))
    with pytest.raises(CheckpointError, match="'num_hidden_layers' is 2, and the files hold 1 layers"):
        ws.load_pretrained(folder)
    with pytest.warns(ws.errors.TrainingWarning, match=r"layers\.1\."):
        assert len(ws.load_pretrained(folder, strict=False).model.layers) == 2


def test_json_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "deep", GPT2, weights_of("gpt2"))
    for text in ("[" * 100_000, '{"model_type":' * 100_000, '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"):
        (folder / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
            ws.load_pretrained(folder)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_setting_of_any_value_is_read_or_refused_by_name(tmp_path: Path, kind: str) -> None:
    folder = folder_of(tmp_path / kind, CONFIGS[kind], weights_of(kind))
    inner = [("rope_parameters", key) for key in ("rope_theta", "rope_type", "factor", "low_freq_factor")]
    scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 4, "rope_theta": 5000.0}  # fmt: skip
    keys: list[tuple[str, ...]] = [(key,) for key in {**CONFIGS[kind], **dict.fromkeys(SETTINGS)}]
    for path in [*keys, *(inner if kind == "llama" else [])]:
        for wrong in WRONG:
            config = {**CONFIGS[kind], path[0]: wrong if len(path) == 1 else {**scaled, path[1]: wrong}}
            (folder / "config.json").write_text(json.dumps(config))
            try:
                ws.load_pretrained(folder)
            except WholestepError:
                continue  # anything else, and any hang, fails the test


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({**LLAMA, "rms_norm_eps": "x"}, "'rms_norm_eps' must be a number of at least 0; received 'x'"),
        (
            {**LLAMA, "rope_parameters": None, "rope_theta": [1]},
            r"'rope_theta' must be a number of at least 0; received \[1\]",
        ),
        (
            {**LLAMA, "rope_parameters": None, "rope_scaling": "linear"},
            "'rope_scaling' must be a JSON object; received",
        ),
        ({**LLAMA, "rope_parameters": {"rope_type": "llama3"}}, "does not set 'low_freq_factor'"),
        ({**BERT, "architectures": ["BertModel", "BertForMaskedLM"]}, "'architectures' must be a list of one name"),
        ({**BERT, "architectures": ["BertForNextSentencePrediction"]}, "supported: BertModel, BertForMaskedLM"),
        (
            {**BERT, "hidden_dropout_prob": 2},
            "'hidden_dropout_prob' must be a number of at least 0 and below 1; received 2",
        ),
        ({**BERT, "classifier_dropout": 0.5}, r"classifier_dropout is 0\.5"),
    ],
)
def test_the_setting_that_is_wrong_is_named(tmp_path: Path, config: dict[str, Any], told: str) -> None:
    folder = folder_of(tmp_path / "folder", config, weights_of(config["model_type"]))
    with pytest.raises((CheckpointError, UsageError), match=told):
        ws.load_pretrained(folder)


# -- scaled rotary positions -------------------------------------------------------------------------------------

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 40}  # fmt: skip


def scaled_by_transformers(scaling: dict[str, Any], base: float, width: int) -> torch.Tensor:
    """`modeling_rope_utils._compute_llama3_parameters` and `_compute_linear_scaling_rope_parameters`."""
    frequencies = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    factor = scaling["factor"]
    if scaling["rope_type"] == "linear":
        return frequencies / factor
    low, high, old = (scaling[k] for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    lengths = 2 * math.pi / frequencies
    divided = torch.where(lengths > old / low, frequencies / factor, frequencies)
    smooth = (old / lengths - low) / (high - low)
    mixed = (1 - smooth) * divided / factor + smooth * divided
    is_between = ~(lengths < old / high) * ~(lengths > old / low)
    return torch.where(is_between, mixed, divided)


@pytest.mark.parametrize("old_layout", [True, False])
@pytest.mark.parametrize("scaling", [LLAMA3, {"rope_type": "linear", "factor": 4.0}], ids=["llama3", "linear"])
def test_scaled_positions_are_those_of_transformers(tmp_path: Path, scaling: dict[str, Any], old_layout: bool) -> None:
    """All three branches of the formula are among the sixteen frequencies of a head."""
    ours = ws.models.llama(layers=1, width=32, heads=1, kv_heads=1, hidden=12, vocabulary=11, context=60, base=100.0)
    config: dict[str, Any] = {
        **LLAMA, "hidden_size": 32, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32,
        "max_position_embeddings": 60, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    del config["rope_parameters"]
    where = {"rope_scaling": scaling, "rope_theta": 100.0}
    config |= where if old_layout else {"rope_parameters": {**scaling, "rope_theta": 100.0}}
    weights = {name: torch.tensor(a) * 20 for name, a in ours.state_dict().items()}
    net = ws.load_pretrained(folder_of(tmp_path / "llama", config, weights))
    expected = scaled_by_transformers(scaling, 100.0, 32)
    np.testing.assert_allclose(net.model.layers[0].self_attn.angles, expected.numpy(), rtol=1e-12)
    tokens = np.random.default_rng(0).integers(0, 11, (2, 50))
    np.testing.assert_allclose(
        net.predict(tokens, device="reference"), llama_scores(weights, tokens, expected), atol=1e-4
    )


def llama_scores(w: dict[str, torch.Tensor], tokens: np.ndarray, frequencies: torch.Tensor) -> np.ndarray:
    """One layer of one head, in a few lines of torch."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w[name]

    def rotated(x: torch.Tensor) -> torch.Tensor:
        angle = (torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequencies).repeat(1, 2)
        half = torch.cat([-x[..., 16:], x[..., :16]], -1)
        return x * angle.cos().float() + half * angle.sin().float()

    layer = "model.layers.0."
    x = w["model.embed_tokens.weight"][torch.tensor(tokens)]
    y = norm(x, f"{layer}input_layernorm.weight")
    q, k, v = (y @ w[f"{layer}self_attn.{p}_proj.weight"].T for p in "qkv")
    mixed = torch.nn.functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
    x = x + mixed @ w[f"{layer}self_attn.o_proj.weight"].T
    y = norm(x, f"{layer}post_attention_layernorm.weight")
    gate, up = (y @ w[f"{layer}mlp.{p}_proj.weight"].T for p in ("gate", "up"))
    x = x + (torch.nn.functional.silu(gate) * up) @ w[f"{layer}mlp.down_proj.weight"].T
    scores: np.ndarray = (norm(x, "model.norm.weight") @ w["lm_head.weight"].T).numpy()
    return scores


def test_text_is_generated_with_scaled_positions_as_without_a_cache() -> None:
    scaling = ws.models.RotaryScaling(factor=8.0, context=4.0)
    net = ws.models.llama(layers=1, width=8, heads=2, kv_heads=1, hidden=12, vocabulary=11, context=12, scaling=scaling)
    prompt = TOKENS[:1, :4]
    found = net.generate(prompt, 6, temperature=0.0)
    tokens = prompt
    for _ in range(6):
        tokens = np.concatenate([tokens, net.predict(tokens)[:, -1].argmax(-1)[:, None]], 1)
    np.testing.assert_array_equal(np.asarray(found)[:, -6:], tokens[:, -6:])


# -- heads of BERT -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "layer", "outputs"),
    [("BertForTokenClassification", "classifier", 3), ("BertForQuestionAnswering", "qa_outputs", 2)],
)
def test_heads_of_every_token(tmp_path: Path, architecture: str, layer: str, outputs: int) -> None:
    """The head is a linear map of the vectors that BertModel gives for the same weights."""
    body = weights_of("bert")
    head = {f"{layer}.weight": torch.randn(outputs, 8), f"{layer}.bias": torch.randn(outputs)}
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}} if outputs == 3 else {}
    net = ws.load_pretrained(
        folder_of(tmp_path / "head", {**BERT, "architectures": [architecture], **labels}, {**body, **head})
    )
    vectors = ws.load_pretrained(folder_of(tmp_path / "body", BERT, body)).predict(TOKENS, device="reference")
    expected = vectors @ head[f"{layer}.weight"].numpy().T + head[f"{layer}.bias"].numpy()
    found = net.predict(TOKENS, device="reference")
    if outputs == 2:
        assert len(found) == 2
        found = np.stack(found, -1)  # the scores of the first token of an answer, and of its last
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_head_of_token_classes_is_trained() -> None:
    net = ws.models.bert(
        head="token_classes", classes=3, layers=1, width=8, heads=2, vocabulary=11, context=6, dropout=0.0
    )
    labels = (TOKENS % 3).astype("i4")
    history = ws.fit(net, (TOKENS, labels), loss="cross_entropy", optimizer=ws.Adam(0.02), epochs=30, progress=False)
    assert history["loss"][-1] < 0.3 * history["loss"][0]

"""Folders as `save_pretrained` writes them, made by hand: the models that come of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

import wholestep as ws
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.errors import CheckpointError, OptionError, TrainingWarning, UnknownNameError, UsageError
from wholestep.steps.module import forward_graph

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 6, "vocab_size": 11,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_inner": None, "resid_pdrop": 0.1}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 11, (2, 5))


def gpt2_weights() -> dict[str, torch.Tensor]:
    """Random ones, under the names that transformers gives them."""
    torch.manual_seed(0)
    shapes = {"wte.weight": (11, 8), "wpe.weight": (6, 8), "ln_f.weight": (8,), "ln_f.bias": (8,)}
    for i in range(2):
        parts = {"ln_1": (8,), "ln_2": (8,), "attn.c_attn": (8, 24), "attn.c_proj": (8, 8)}
        for part, shape in (parts | {"mlp.c_fc": (8, 32), "mlp.c_proj": (32, 8)}).items():
            shapes |= {f"h.{i}.{part}.weight": shape, f"h.{i}.{part}.bias": shape[-1:]}
    found = {f"transformer.{name}": torch.randn(shape) * 0.3 for name, shape in shapes.items()}
    return {**found, "transformer.h.0.attn.bias": torch.ones(1, 1, 6, 6).tril()}


def gpt2_scores(w: dict[str, torch.Tensor], tokens: np.ndarray) -> torch.Tensor:
    """The model in a few lines of torch."""

    def of(name: str) -> torch.Tensor:
        return w[f"transformer.{name}"].float()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (8,), of(f"{name}.weight"), of(f"{name}.bias"))

    def dense(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ of(f"{name}.weight") + of(f"{name}.bias")

    x = of("wte.weight")[torch.tensor(tokens)] + of("wpe.weight")[: tokens.shape[1]]
    for i in range(2):
        q, k, v = (
            t.unflatten(-1, (2, 4)).transpose(1, 2)
            for t in dense(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(8, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + dense(mixed, f"h.{i}.attn.c_proj")
        up = F.gelu(dense(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
        x = x + dense(up, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ of("wte.weight").T


def folder_of(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor], shards: int = 1) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(weights, path / "model.safetensors")
        return path
    places = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(weights)}
    for file in set(places.values()):
        save_file({n: w for n, w in weights.items() if places[n] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


@pytest.fixture(scope="module")
def network() -> Any:
    """One that is compiled once, for all folders."""
    return ws.models.gpt2(layers=2, width=8, heads=2, vocabulary=11, context=6)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_gpt2_in_shards_and_half_types(tmp_path: Path, kind: torch.dtype) -> None:
    weights = {name: w.to(kind) for name, w in gpt2_weights().items()}
    model = ws.load_pretrained(folder_of(tmp_path / "gpt2", GPT2, weights, 1 if kind == torch.float32 else 3))
    wanted = gpt2_scores(weights, TOKENS).numpy()
    np.testing.assert_allclose(model.predict(TOKENS, device="reference"), wanted, atol=1e-5)
    assert model.drop.p == 0.1


COMMON = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
TEXT = {"vocab_size": 11, "max_position_embeddings": 6}
LLAMA = {**COMMON, **TEXT, "model_type": "llama", "num_key_value_heads": 1, "rms_norm_eps": 1e-4, "hidden_act": "silu",
         "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}, "head_dim": 4}  # fmt: skip
BERT = {**COMMON, **TEXT, "model_type": "bert", "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-6,
        "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}  # fmt: skip
VIT = {**COMMON, "model_type": "vit", "image_size": 4, "patch_size": 2, "num_channels": 3, "layer_norm_eps": 1e-6,
       "id2label": {"0": "cat", "1": "dog", "2": "bird"}, "architectures": ["ViTForImageClassification"]}  # fmt: skip


def others() -> dict[str, tuple[dict[str, Any], Any, dict[str, str], dict[str, tuple[int, ...]]]]:
    """Configuration, our model of it, other names in the file, and what the file has besides."""
    models, bert = ws.models, {"layers": 1, "width": 8, "heads": 2, "hidden": 12, "vocabulary": 11, "context": 6}
    bert |= {"dropout": 0.2, "eps": 1e-6}
    llama = models.llama(
        layers=1, width=8, heads=2, kv_heads=1, hidden=12, vocabulary=11, context=6, base=5e3, eps=1e-4
    )
    image = models.vit(classes=3, image=4, patch=2, layers=1, width=8, heads=2, hidden=12, eps=1e-6)
    classes = {**BERT, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    again = {
        "cls.predictions.decoder.bias": (11,),
        "bert.pooler.dense.weight": (8, 8),
        "bert.embeddings.position_ids": (1, 6),
    }
    old = {"bert.embeddings.LayerNorm.weight": "bert.embeddings.LayerNorm.gamma"}
    return {
        "llama": (LLAMA, llama, {}, {"model.layers.0.self_attn.rotary_emb.inv_freq": (2,)}),
        "bert": (BERT, models.bert(head=None, **bert), {"bert.": ""}, {"pooler.dense.bias": (8,)}),
        "tokens": ({**BERT, "architectures": ["BertForMaskedLM"]}, models.bert(head="tokens", **bert), old, again),
        "classes": (classes, models.bert(head="classes", classes=3, **bert), {}, {}),
        "vit": (VIT, image, {}, {"vit.pooler.dense.weight": (8, 8)}),
    }


@pytest.mark.parametrize("name", ["llama", "bert", "tokens", "classes", "vit"])
def test_other_models_by_their_published_names(tmp_path: Path, name: str) -> None:
    config, ours, names, more = others()[name]
    weights = {}
    for key, array in ours.state_dict().items():
        new = names.get(key, key.removeprefix("bert.") if "bert." in names else key)
        weights[new] = torch.tensor(array)
    weights |= {key: torch.zeros(shape) for key, shape in more.items()}
    theirs = ws.load_pretrained(folder_of(tmp_path / name, config, weights))
    for key, array in ours.state_dict().items():
        np.testing.assert_array_equal(theirs.state_dict()[key], array, err_msg=key)
    given = np.zeros((1, 3, 4, 4), np.float32) if name == "vit" else TOKENS
    spec = ws.Spec(("batch", *given.shape[1:]), given.dtype.name)
    assert str(theirs.summary(spec)) == str(ours.summary(spec))
    graphs = [forward_graph(m, spec)[0].to_ir() for m in (theirs, ours)]
    assert fingerprint(graphs[0]) == fingerprint(graphs[1])  # rates, eps, heads, bases


def test_what_other_models_do_not_do_is_named(tmp_path: Path) -> None:
    for i, (text, config) in enumerate(
        {
            "rotary scaling 'yarn' is none of": {**LLAMA, "rope_scaling": {"type": "yarn"}, "rope_parameters": None},
            "attention_bias is True": {**LLAMA, "attention_bias": True},
            "set them equal": {**BERT, "hidden_dropout_prob": 0.0},
            "position_embedding_type is 'relative_key'": {**BERT, "position_embedding_type": "relative_key"},
            "architectures is \\['ViTForMaskedImageModeling'\\]": {
                **VIT,
                "architectures": ["ViTForMaskedImageModeling"],
            },
        }.items()
    ):
        with pytest.raises(UsageError, match=text):
            ws.load_pretrained(folder_of(tmp_path / str(i), config, {"w": torch.zeros(1)}))


def test_files_of_torch_are_read_without_running_them(tmp_path: Path, network: Any) -> None:
    weights = gpt2_weights()
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT2))
    torch.save({"state_dict": weights, "epoch": 3}, folder / "pytorch_model.bin")
    model = ws.load_pretrained(folder)
    np.testing.assert_array_equal(model.state_dict()["wpe.weight"], weights["transformer.wpe.weight"])
    names = {"transformer.": "", "transformer.h.*.attn.bias": None}
    assert not network.load(folder / "pytorch_model.bin", rename=names).missing
    np.testing.assert_array_equal(network.state_dict()["ln_f.bias"], weights["transformer.ln_f.bias"])

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return exec, ("raise SystemExit('it ran')",)

    torch.save({"w": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="not a file of tensors alone that torch reads with weights_only=True"):
        network.load(tmp_path / "evil.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="holds a list, not tensors by name"):
        network.load(tmp_path / "list.pt")
    (tmp_path / "cut.pt").write_bytes((folder / "pytorch_model.bin").read_bytes()[:300])
    with pytest.raises(CheckpointError, match=r"cut\.pt is not a file of tensors alone"):
        network.load(tmp_path / "cut.pt")


def test_names_with_stars(network: Any) -> None:
    values = network.state_dict()
    theirs = {name.replace("h.", "layers.").replace(".c_", ".conv_"): a for name, a in values.items()}
    report = network.load_state_dict(theirs, rename={"layers.*.*.conv_*": "h.*.*.c_*", "layers.*": "h.*"})
    assert len(report.loaded) == len(values)
    with pytest.raises(UsageError, match=r"each \* of the new name is one of the old one, in order; there are 2 for 1"):
        network.load_state_dict(theirs, rename={"layers.*": "h.*.*"})
    with pytest.raises(OptionError, match=r"'blocks\.\*' of rename is neither a name nor the prefix of one"):
        network.load_state_dict(theirs, rename={"blocks.*": "h.*"})


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    weights = gpt2_weights()
    del weights["transformer.ln_f.bias"]
    weights["transformer.wpe.weight"] = torch.zeros(9, 8)
    weights["transformer.score.weight"] = torch.zeros(2, 8)
    folder = folder_of(tmp_path / "gpt2", GPT2, weights)
    with pytest.raises(UnknownNameError, match=r"missing in the file: ln_f\.bias"):
        ws.load_pretrained(folder)
    with pytest.warns(TrainingWarning) as told:
        model = ws.load_pretrained(folder, strict=False)
    text = str(told[0].message)
    assert "left as they were: ln_f.bias" in text
    assert "not in the model: score.weight" in text
    assert "'wpe.weight' has shape (6, 8) in the model; received (9, 8)" in text
    np.testing.assert_array_equal(model.state_dict()["wte.weight"], weights["transformer.wte.weight"])


def test_folders_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    weights = gpt2_weights()
    with pytest.raises(CheckpointError, match=r"has no config\.json: name the folder that save_pretrained wrote"):
        ws.load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        ws.load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(OptionError, match="has model_type 'unheard-of'; supported: llama, bert, vit, gpt2"):
        ws.load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    with pytest.raises(CheckpointError, match=r"of other safetensors files there are: none"):
        ws.load_pretrained(tmp_path)
    odd = folder_of(tmp_path / "odd", {**GPT2, "activation_function": "relu"}, weights)
    with pytest.raises(UsageError, match="activation_function is 'relu'; supported: 'gelu_new'"):
        ws.load_pretrained(odd)
    (odd / "config.json").write_text(json.dumps({**GPT2, "n_layer": -1}))
    with pytest.raises(CheckpointError, match="'n_layer' must be an integer of at least 1; received -1"):
        ws.load_pretrained(odd)
    shards = folder_of(tmp_path / "shards", GPT2, weights, 2)
    (shards / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"names the shard 'model-00002-of-00002\.safetensors', which is not there"
    ):
        ws.load_pretrained(shards)
    index = shards / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"wte.weight": "../odd/model.safetensors"}}))
    with pytest.raises(CheckpointError, match="which is outside of its folder"):
        ws.load_pretrained(shards)
    index.write_text(json.dumps({"weight_map": {"nothing": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(
        CheckpointError, match=r"puts 'nothing' into 'model-00001-of-00002\.safetensors', which lacks it"
    ):
        ws.load_pretrained(shards)
    index.write_text("[]")
    with pytest.raises(CheckpointError, match="has no weight_map of shards"):
        ws.load_pretrained(shards)

"""Models of papers against the same equations in torch: three steps of `fit` in float64, losses and every parameter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wholestep as ws
from wholestep.errors import OptionError, ShapeError

RNG = np.random.default_rng(0)
LR, STEPS = 0.1, 3
PLAIN = ws.CompileOptions(verify=False, optimize=False)
Numbers = dict[str, torch.Tensor]


def linear(p: Numbers, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def conv(p: Numbers, name: str, x: torch.Tensor, **how: Any) -> torch.Tensor:
    return F.conv2d(x, p[f"{name}.weight"], p.get(f"{name}.bias"), **how)


def batch_norm(p: Numbers, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, p[f"{name}.weight"], p[f"{name}.bias"], training=True)


def layer_norm(p: Numbers, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], eps)


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


STAGES = ((1, 16, 1, 1), (6, 24, 2, 2))  # of MobileNetV2, the first


# -- the twins ---------------------------------------------------------------------------------------------------


def densenet(p: Numbers, x: torch.Tensor) -> torch.Tensor:
    def normed(name: str, x: torch.Tensor) -> torch.Tensor:
        return batch_norm(p, f"features.{name}", x).relu()

    x = F.max_pool2d(normed("norm0", conv(p, "features.conv0", x, stride=2, padding=3)), 3, 2, 1)
    for block, layers in ((1, 2), (2, 1)):
        for layer in range(1, layers + 1):
            at = f"denseblock{block}.denselayer{layer}"
            y = conv(p, f"features.{at}.conv1", normed(f"{at}.norm1", x))
            x = torch.cat([x, conv(p, f"features.{at}.conv2", normed(f"{at}.norm2", y), padding=1)], 1)
        if block == 1:
            x = F.avg_pool2d(conv(p, "features.transition1.conv", normed("transition1.norm", x)), 2)
    return linear(p, "classifier", normed("norm5", x).mean((2, 3)))


def convnext(p: Numbers, x: torch.Tensor) -> torch.Tensor:
    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(p, name, x.movedim(1, 3), 1e-6).movedim(3, 1)

    x = norm("features.0.1", conv(p, "features.0.0", x, stride=4))
    for stage, blocks in ((1, 1), (3, 2)):
        if stage == 3:
            x = conv(p, "features.2.1", norm("features.2.0", x), stride=2)
        for i in range(blocks):
            at = f"features.{stage}.{i}"
            y = conv(p, f"{at}.block.0", x, padding=3, groups=x.shape[1])
            y = F.gelu(linear(p, f"{at}.block.3", layer_norm(p, f"{at}.block.2", y.movedim(1, 3), 1e-6)))
            x = x + p[f"{at}.layer_scale"] * linear(p, f"{at}.block.5", y).movedim(3, 1)
    return linear(p, "classifier.2", layer_norm(p, "classifier.0", x.mean((2, 3)), 1e-6))


def squeezed_units(
    p: Numbers, at: str, x: torch.Tensor, stride: int, act: Any, inner: Any, gate: Any, eps: float
) -> torch.Tensor:
    """The parts of an inverted residual, by the names of its arrays: units, and a squeeze of two convolutions."""
    y, parts = x, sorted({int(n.removeprefix(f"{at}.").split(".")[0]) for n in p if n.startswith(f"{at}.")})
    for i in parts:
        name = f"{at}.{i}"
        if f"{name}.fc1.weight" in p:
            y = y * gate(conv(p, f"{name}.fc2", inner(conv(p, f"{name}.fc1", y.mean((2, 3), keepdim=True)))))
            continue
        weight = p[f"{name}.0.weight"]
        depthwise = weight.shape[1] == 1
        how = {"stride": stride, "groups": len(weight)} if depthwise else {}
        y = F.conv2d(y, weight, padding=weight.shape[-1] // 2, **how)
        y = F.batch_norm(y, None, None, p[f"{name}.1.weight"], p[f"{name}.1.bias"], training=True, eps=eps)
        y = y if i == parts[-1] else act(y)
    return x + y if x.shape == y.shape and stride == 1 else y


def ends(p: Numbers, x: torch.Tensor, name: str, act: Any, eps: float, stride: int = 1) -> torch.Tensor:
    weight = p[f"features.{name}.0.weight"]
    y = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
    at = f"features.{name}.1"
    return act(F.batch_norm(y, None, None, p[f"{at}.weight"], p[f"{at}.bias"], training=True, eps=eps))


def mobilenet_v3(p: Numbers, x: torch.Tensor) -> torch.Tensor:
    x = ends(p, x, "0", F.hardswish, 1e-3, 2)
    for i, (hard, stride) in enumerate(((False, 2), (False, 2), (True, 1)), 1):
        act = F.hardswish if hard else F.relu
        x = squeezed_units(p, f"features.{i}.block", x, stride, act, F.relu, F.hardsigmoid, 1e-3)
    x = ends(p, x, "4", F.hardswish, 1e-3).mean((2, 3))
    return linear(p, "classifier.3", F.hardswish(linear(p, "classifier.0", x)))


def efficientnet(p: Numbers, x: torch.Tensor) -> torch.Tensor:
    x = ends(p, x, "0", F.silu, 1e-5, 2)
    for at, stride in (("1.0", 1), ("2.0", 2), ("2.1", 1)):
        x = squeezed_units(p, f"features.{at}.block", x, stride, F.silu, F.silu, torch.sigmoid, 1e-5)
    return linear(p, "classifier.1", ends(p, x, "3", F.silu, 1e-5).mean((2, 3)))


def mobilenet(p: Numbers, x: torch.Tensor) -> torch.Tensor:
    def unit(name: str, x: torch.Tensor, stride: int = 1, groups: int = 1) -> torch.Tensor:
        around = p[f"{name}.0.weight"].shape[-1] // 2
        y = conv(p, f"{name}.0", x, stride=stride, padding=around, groups=groups)
        return F.relu6(batch_norm(p, f"{name}.1", y))

    x, number = unit("features.0", x, 2), 1
    for expansion, _, blocks, stride in STAGES:
        for i in range(blocks):
            name, y, step = f"features.{number}.conv", x, stride if i == 0 else 1
            if expansion > 1:
                y = unit(f"{name}.0", y)
            at = int(expansion > 1)
            y = unit(f"{name}.{at}", y, step, y.shape[1])
            y = batch_norm(p, f"{name}.{at + 2}", conv(p, f"{name}.{at + 1}", y))
            x, number = x + y if step == 1 and x.shape == y.shape else y, number + 1
    return linear(p, "classifier.1", unit(f"features.{number}", x).mean((2, 3)))


def unet(p: Numbers, x: torch.Tensor) -> torch.Tensor:
    def double(name: str, x: torch.Tensor) -> torch.Tensor:
        for i in (0, 3):
            x = F.relu(batch_norm(p, f"{name}.{i + 1}", conv(p, f"{name}.{i}", x, padding=1)))
        return x

    seen = [double("first", x)]
    for i in range(2):
        seen.append(double(f"down.{i}", F.max_pool2d(seen[-1], 2)))
    x = seen.pop()
    for i in range(2):
        up = F.conv_transpose2d(x, p[f"up.{i}.weight"], p[f"up.{i}.bias"], stride=2)
        x = double(f"join.{i}", torch.cat([seen.pop(), up], 1))
    return conv(p, "last", x)


def vit(p: Numbers, x: torch.Tensor) -> torch.Tensor:
    words = conv(p, "vit.embeddings.patch_embeddings.projection", x, stride=4).flatten(2).transpose(1, 2)
    x = (
        torch.cat([p["vit.embeddings.cls_token"].expand(len(x), 1, -1), words], 1)
        + p["vit.embeddings.position_embeddings"]
    )
    for i in range(2):
        name = f"vit.encoder.layer.{i}"
        y = layer_norm(p, f"{name}.layernorm_before", x, 1e-12)
        q, k, v = (heads(linear(p, f"{name}.attention.attention.{n}", y), 2) for n in ("query", "key", "value"))
        x = x + linear(p, f"{name}.attention.output.dense", attended(q, k, v))
        y = linear(p, f"{name}.intermediate.dense", layer_norm(p, f"{name}.layernorm_after", x, 1e-12))
        x = x + linear(p, f"{name}.output.dense", F.gelu(y))
    return linear(p, "classifier", layer_norm(p, "vit.layernorm", x, 1e-12)[:, 0])


def bert(p: Numbers, tokens: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor, head: str) -> torch.Tensor:
    e, eps = "bert.embeddings", 1e-12
    x = p[f"{e}.word_embeddings.weight"][tokens] + p[f"{e}.token_type_embeddings.weight"][segments]
    x = layer_norm(p, f"{e}.LayerNorm", x + p[f"{e}.position_embeddings.weight"][: tokens.shape[1]], eps)
    for i in range(2):
        name = f"bert.encoder.layer.{i}"
        q, k, v = (heads(linear(p, f"{name}.attention.self.{n}", x), 2) for n in ("query", "key", "value"))
        y = linear(p, f"{name}.attention.output.dense", attended(q, k, v, mask[:, None, None] != 0))
        x = layer_norm(p, f"{name}.attention.output.LayerNorm", x + y, eps)
        y = linear(p, f"{name}.output.dense", F.gelu(linear(p, f"{name}.intermediate.dense", x)))
        x = layer_norm(p, f"{name}.output.LayerNorm", x + y, eps)
    if head == "classes":
        return linear(p, "classifier", torch.tanh(linear(p, "bert.pooler.dense", x[:, 0])))
    t = "cls.predictions.transform"
    x = layer_norm(p, f"{t}.LayerNorm", F.gelu(linear(p, f"{t}.dense", x)), eps)
    return x @ p[f"{e}.word_embeddings.weight"].T + p["cls.predictions.bias"]


def turned(x: torch.Tensor, base: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[2]), base ** (-torch.arange(half) / half)).double()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def llama(p: Numbers, tokens: torch.Tensor) -> torch.Tensor:
    x = p["model.embed_tokens.weight"][tokens]
    before = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    for i in range(2):
        name = f"model.layers.{i}"
        y = F.rms_norm(x, x.shape[-1:], p[f"{name}.input_layernorm.weight"], 1e-5)
        q, k, v = (heads(linear(p, f"{name}.self_attn.{n}_proj", y), c) for n, c in (("q", 4), ("k", 2), ("v", 2)))
        q, k = turned(q, 500.0), turned(k, 500.0)
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        x = x + linear(p, f"{name}.self_attn.o_proj", attended(q, k, v, before))
        y = F.rms_norm(x, x.shape[-1:], p[f"{name}.post_attention_layernorm.weight"], 1e-5)
        inner = F.silu(linear(p, f"{name}.mlp.gate_proj", y)) * linear(p, f"{name}.mlp.up_proj", y)
        x = x + linear(p, f"{name}.mlp.down_proj", inner)
    return linear(p, "lm_head", F.rms_norm(x, x.shape[-1:], p["model.norm.weight"], 1e-5))


def vae(p: Numbers, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    h = F.relu(linear(p, "encoder.0", x))
    mean, log_variance = linear(p, "mean", h), linear(p, "log_variance", h)
    logits = linear(p, "decoder.2", F.relu(linear(p, "decoder.0", mean + torch.exp(0.5 * log_variance) * noise)))
    each = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
    # the bound of the paper, for each input
    return F.binary_cross_entropy_with_logits(logits, x) + 0.5 * each.mean() / x.shape[1]


def diffusion(p: Numbers, x: torch.Tensor, times: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    def normed(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, math.gcd(x.shape[1], 8), p[f"{name}.weight"], p[f"{name}.bias"])

    def block(name: str, x: torch.Tensor) -> torch.Tensor:
        y = conv(p, f"{name}.conv1", F.silu(normed(f"{name}.norm1", x)), padding=1)
        y = y + linear(p, f"{name}.time", F.silu(t))[:, :, None, None]
        y = conv(p, f"{name}.conv2", F.silu(normed(f"{name}.norm2", y)), padding=1)
        return y + (conv(p, f"{name}.shortcut", x) if f"{name}.shortcut.weight" in p else x)

    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 10, dtype=torch.float64), 0)[times][:, None, None, None]
    noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
    angles = times[:, None] * torch.exp(-math.log(10000.0) * torch.arange(2) / 2)
    t = linear(p, "net.time2", F.silu(linear(p, "net.time1", torch.cat([angles.sin(), angles.cos()], 1).double())))
    seen = [conv(p, "net.first", noisy, padding=1)]
    seen.append(block("net.down.0", seen[-1]))
    seen.append(conv(p, "net.halve.0", seen[-1], padding=1, stride=2))
    seen.append(block("net.down.1", seen[-1]))
    y = block("net.middle1", seen[-1])
    q, k, v = (
        s.flatten(3).transpose(2, 3)
        for s in conv(p, "net.attention.qkv", normed("net.attention.norm", y)).unflatten(1, (3, 2, -1)).unbind(1)
    )
    mixed = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
    y = block("net.middle2", y + conv(p, "net.attention.out", mixed.transpose(2, 3).reshape(y.shape)))
    for i in range(4):
        y = block(f"net.up.{i}", torch.cat([y, seen.pop()], 1))
        if i == 1:
            y = conv(p, "net.double.0", F.interpolate(y, scale_factor=2), padding=1)
    off = conv(p, "net.last", F.silu(normed("net.norm", y)), padding=1) - noise
    return (off**2).mean()


# -- three steps of each -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    model: Callable[[], ws.nn.Module]
    twin: Callable[..., torch.Tensor]  # of the parameters and the inputs
    inputs: Any  # an array, or arrays by name
    target: Any
    loss: Any
    their_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def integers(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, shape).astype(np.int32)


def entropy(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out.flatten(0, -2) if out.ndim == 3 else out, target.flatten().long())


TOKENS, MASK = integers(11, 3, 5), np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.int32)
TEXTS = {"tokens": TOKENS, "segments": integers(2, 3, 5), "mask": MASK}
SMALL = {"layers": 2, "width": 8, "heads": 2, "dropout": 0.0}
SCORES = (np.zeros(3), ws.models.noise_loss, lambda out, _: out)
ROWS = {
    "mobilenet_v2": Row(
        lambda: ws.models.mobilenet_v2(3, width=0.1, dropout=0.0, dtype="float64"), mobilenet,
        RNG.normal(size=(4, 3, 12, 10)), integers(3, 4), "cross_entropy", entropy,
    ),
    "mobilenet_v3": Row(
        lambda: ws.models.mobilenet_v3("small", 3, width=0.2, dropout=0.0, dtype="float64"), mobilenet_v3,
        RNG.normal(size=(4, 3, 24, 20)), integers(3, 4), "cross_entropy", entropy,
    ),
    "efficientnet": Row(
        lambda: ws.models.efficientnet(0, 3, dropout=0.0, drop_path=0.0, dtype="float64"), efficientnet,
        RNG.normal(size=(4, 3, 16, 12)), integers(3, 4), "cross_entropy", entropy,
    ),
    "densenet": Row(
        lambda: ws.models.densenet(classes=3, growth=2, blocks=(2, 1), first=4, dtype="float64"), densenet,
        RNG.normal(size=(3, 3, 24, 20)), integers(3, 3), "cross_entropy", entropy,
    ),
    "convnext": Row(
        lambda: ws.models.convnext(
            classes=3, blocks=(1, 2), widths=(4, 6), drop_path=0.0, layer_scale=0.5, dtype="float64"
        ),
        convnext,
        RNG.normal(size=(3, 3, 16, 24)), integers(3, 3), "cross_entropy", entropy,
    ),
    "unet": Row(
        lambda: ws.models.unet(2, 1, width=4, depth=2, dtype="float64"), unet, RNG.normal(size=(2, 2, 8, 12)),
        RNG.normal(size=(2, 1, 8, 12)), "mse", F.mse_loss,
    ),
    "vit": Row(
        lambda: ws.models.vit(classes=3, image=8, patch=4, **SMALL, dtype="float64"), vit,
        RNG.normal(size=(3, 3, 8, 8)), integers(3, 3), "cross_entropy", entropy,
    ),
    "bert, tokens": Row(
        lambda: ws.models.bert(vocabulary=11, context=6, **SMALL, dtype="float64"),
        lambda p, *x: bert(p, *x, "tokens"), TEXTS, integers(11, 3, 5), "cross_entropy", entropy,
    ),
    "bert, classes": Row(
        lambda: ws.models.bert(head="classes", classes=3, vocabulary=11, context=6, **SMALL, dtype="float64"),
        lambda p, *x: bert(p, *x, "classes"), TEXTS, integers(3, 3), "cross_entropy", entropy,
    ),
    "llama": Row(
        lambda: ws.models.llama(
            layers=2, width=16, heads=4, kv_heads=2, hidden=12, vocabulary=11, context=6, base=500.0, eps=1e-5,
            dtype="float64",
        ),
        llama, TOKENS, integers(11, 3, 5), "cross_entropy", entropy,
    ),
    "vae": Row(
        lambda: ws.models.vae(6, latent=2, hidden=5, beta=0.5, dtype="float64"), vae,
        {"x": (X := RNG.uniform(size=(3, 6))), "noise": RNG.normal(size=(3, 2))}, X, "bce", lambda out, _: out,
    ),
    "diffusion": Row(
        lambda: ws.models.diffusion(4, 1, width=4, levels=(1, 2), heads=2, steps=10, dtype="float64"), diffusion,
        {"x": RNG.normal(size=(3, 1, 4, 4)), "times": integers(10, 3), "noise": RNG.normal(size=(3, 1, 4, 4))}, *SCORES,
    ),
}  # fmt: skip


def as_torch(a: np.ndarray) -> torch.Tensor:
    return torch.tensor(a.astype(np.int64) if a.dtype == np.int32 else a)


@pytest.mark.parametrize("name", ROWS)
def test_three_steps_of_fit_equal_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROWS[name]
    monkeypatch.setattr("wholestep.models.mobile_net.STAGES", STAGES)
    monkeypatch.setattr("wholestep.models.efficient_net.STAGES", ((1, 3, 1, 8, 1), (6, 5, 2, 16, 2)))
    rows = ((3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (5, 96, 24, True, True, 1))
    monkeypatch.setattr("wholestep.models.mobile_net_v3.TABLES", {"small": (rows, 64)})
    model = row.model()
    trained = list(model.parameters())
    p = {n: torch.tensor(a, requires_grad=n in trained) for n, a in model.state_dict().items() if a.dtype.kind == "f"}
    given = list(row.inputs.values()) if isinstance(row.inputs, dict) else [row.inputs]
    inputs, target, losses = [as_torch(a) for a in given], as_torch(row.target), []
    for _ in range(STEPS):
        loss = row.their_loss(row.twin(p, *inputs), target)
        losses.append(loss.item())
        slopes = torch.autograd.grad(loss, [p[n] for n in trained])
        p |= {n: (p[n] - LR * g).detach().requires_grad_() for n, g in zip(trained, slopes, strict=True)}
    history = ws.fit(
        model, (row.inputs, row.target), loss=row.loss, optimizer=ws.SGD(lr=LR), epochs=STEPS, shuffle=False,
        batch_size=len(given[0]), device="reference", progress=False, options=PLAIN,
    )  # fmt: skip
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-9)
    state = model.state_dict()
    for n in trained:
        expected = p[n].detach().numpy()
        np.testing.assert_allclose(state[n], expected, rtol=1e-7, atol=1e-9, err_msg=n)


def test_published_numbers_of_parameters() -> None:
    counts = {
        "mobilenet_v2": (ws.models.mobilenet_v2(), 3_504_872),
        "mobilenet_v3_small": (ws.models.mobilenet_v3("small"), 2_542_856),
        "mobilenet_v3_large": (ws.models.mobilenet_v3(), 5_483_032),
        "efficientnet_b0": (ws.models.efficientnet(), 5_288_548),
        "densenet121": (ws.models.densenet(), 7_978_856),
        "convnext_tiny": (ws.models.convnext(), 28_589_128),
        "vit": (ws.models.vit(), 86_567_656),
        "bert": (ws.models.bert(head=None), 108_891_648),  # without its pooler
        "llama": (ws.models.llama("tinyllama-1.1b"), 1_100_048_384),
    }
    for name, (model, count) in counts.items():
        assert sum(p.elements for p in model.parameters().values()) == count, name


def test_vae_and_diffusion_draw_their_own_numbers_and_make_new_examples() -> None:
    x = RNG.uniform(size=(8, 6)).astype(np.float32)
    model = ws.models.vae(6, latent=2, hidden=5)
    how = {"device": "reference", "progress": False, "epochs": 2, "options": PLAIN}
    history = ws.fit(model, (x, x), loss="bce", **how)
    np.testing.assert_allclose(history["loss"], np.add(history["data_loss"], history["divergence_loss"]), rtol=1e-6)
    assert model.sample(5, device="reference").shape == (5, 6)
    images = RNG.normal(size=(4, 1, 4, 4)).astype(np.float32)
    noisy = ws.models.diffusion(4, 1, width=4, levels=(1,), steps=3)
    assert np.isfinite(ws.fit(noisy, (images, np.zeros(4)), loss=ws.models.noise_loss, **how)["loss"]).all()
    first, again, other = (noisy.sample(2, seed, device="reference") for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (2, 1, 4, 4)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ws.models.llama("llama-9b"), OptionError, "the sizes are llama-7b, llama-3-8b"),
        (lambda: ws.models.llama(width=30, heads=4), OptionError, "a width of 30 divides into 4 heads"),
        (lambda: ws.models.bert(head="words"), OptionError, "head is 'tokens', 'classes' or None"),
        (lambda: ws.models.bert(width=30, heads=4), OptionError, "a width of 30 does not divide into 4 heads"),
        (lambda: ws.models.vit(image=30, patch=16), OptionError, "do not divide into patches of 16 x 16"),
        (lambda: ws.models.diffusion(image=6, levels=(1, 1, 1)), OptionError, "cannot be halved 2 times"),
        (
            lambda: ws.models.unet(depth=2, width=2).summary(ws.Spec((1, 3, 6, 8))), ShapeError,
            "height and width are multiples of 4",
        ),
        (
            lambda: ws.models.vit(image=8, patch=4, **SMALL).summary(ws.Spec((1, 3, 9, 8))), ShapeError,
            r"vit takes images \(batch, 3, 8, 8\)",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()

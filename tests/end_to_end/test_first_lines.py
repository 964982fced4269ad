"""The lines by which the project is introduced run exactly as they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import wholestep as ws

TO_A_FINISHED_RUN = """
import wholestep as ws
model = ws.nn.Sequential(ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10))
history = ws.fit(model, (x, y), validation=(xv, yv), loss="cross_entropy", optimizer=ws.AdamW(lr=1e-3),
                 schedule=ws.schedules.cosine(warmup=100), metrics=["accuracy"], epochs=5, batch_size=128,
                 callbacks=[ws.EarlyStopping("val_loss", patience=3), ws.ModelCheckpoint("runs/digits", monitor="val_accuracy", mode="max")])
model.predict(xt); model.save("digits.safetensors"); history.plot("digits.png")
"""  # noqa: E501

LAYERS = """
class Block(ws.nn.Module):
    def __init__(self, width):
        self.norm, self.up, self.down = ws.nn.LayerNorm(width), ws.nn.Linear(width, 4 * width), ws.nn.Linear(4 * width, width)
    def forward(self, x):
        return x + self.down(ws.gelu(self.up(self.norm(x))))

model = ws.models.gpt2(layers=4, width=128, heads=4, vocabulary=65, context=64)     # or lenet5(), resnet20(), lstm_lm(), ...
print(model.summary(ws.Spec(("batch", 64), "int32")))
session = ws.build_session(model, inputs=ws.Spec(("batch", 64), "int32"), targets=ws.Spec(("batch", 64), "int32"),
                           loss="cross_entropy", optimizer=ws.AdamW(lr=3e-4), batch_size=16)
session.step(x=tokens, labels=next_tokens)
logits = model(tokens)                                          # NumPy in, NumPy out: the predict entry point, same weights
model.load("weights.safetensors")
"""  # noqa: E501


def test_from_three_lines_to_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    digits, classes = ws.datasets.digits()
    images = np.pad(np.kron(digits.reshape(-1, 8, 8), np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))  # 28 x 28
    pixels = images.reshape(-1, 784).astype(np.float32)
    names = {
        "x": np.tile(pixels[:1300], (2, 1)), "y": np.tile(classes[:1300], 2),
        "xv": pixels[1300:1500], "yv": classes[1300:1500], "xt": pixels[1500:],
    }  # fmt: skip
    exec(TO_A_FINISHED_RUN, names)
    history, model = names["history"], names["model"]
    assert history["val_accuracy"][-1] > 0.85
    best = ws.load_checkpoint("runs/digits", best="val_accuracy", mode="max")
    assert best.logs["val_accuracy"] == max(history["val_accuracy"])
    assert Path("digits.png").read_bytes()[:4] == b"\x89PNG"
    twin = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    from safetensors.torch import load_file
    from torch import tensor

    twin.load_state_dict(load_file("digits.safetensors"))
    theirs = twin(tensor(names["xt"])).detach().numpy()
    np.testing.assert_allclose(model.predict(names["xt"]), theirs, rtol=1e-4, atol=1e-4)


def test_layers_people_train_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = ws.models.gpt2(layers=4, width=128, heads=4, vocabulary=65, context=64)
    stored.save("weights.safetensors")
    tokens = np.random.default_rng(0).integers(0, 65, (16, 64))
    names = {"ws": ws, "tokens": tokens, "next_tokens": np.roll(tokens, -1, axis=1)}
    exec(LAYERS, names)
    assert "809,856 parameters" in capsys.readouterr().out
    assert names["logits"].shape == (16, 64, 65)
    assert not np.array_equal(names["logits"], names["model"](tokens)), "the file's weights are others"
    for name, array in stored.state_dict().items():
        assert np.array_equal(names["model"].state_dict()[name], array)
    block = names["Block"](8)
    assert block(np.ones((2, 8), np.float32)).shape == (2, 8)
    assert "norm.weight" in block.state_dict()

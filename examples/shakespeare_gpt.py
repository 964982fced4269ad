"""A small GPT learns to imitate a text file, character by character, and writes a page at the end.

Any plain text works; "tiny Shakespeare" (1.1 MB) is the usual one: `python examples/shakespeare_gpt.py --text FILE`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import wholestep as ws


def windows(tokens: np.ndarray, context: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of the text, and the same pieces shifted by one character: the target of each position."""
    starts = np.arange(0, len(tokens) - context, stride)[:, None] + np.arange(context)  # (windows, context)
    return tokens[starts], tokens[starts + 1]


def sample(
    model: ws.nn.Module, prompt: np.ndarray, length: int, temperature: float, seed: int = 0, device: str = "cpu"
) -> np.ndarray:
    """Continues a prompt of `context` tokens: samples from the scores of the last position, then shifts by one."""
    rng, tokens = np.random.default_rng(seed), list(prompt)
    for _ in range(length):
        scores = model.predict(np.array([tokens[-len(prompt) :]], np.int32), device=device)[0, -1]
        # The argmax of scores plus Gumbel noise is a sample from their softmax.
        tokens.append(int((scores / temperature + rng.gumbel(size=scores.shape)).argmax()))
    return np.array(tokens[len(prompt) :], np.int32)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="a plain text file; the last tenth is for validation")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64, help="characters that the model sees")
    parser.add_argument("--dropout", type=float, default=0.0, help="0.2 or so where the model is large for its text")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3, help="the peak of the schedule")
    parser.add_argument("--warmup", type=int, default=100, help="steps until the peak")
    parser.add_argument("--precision", default="float32", help="bfloat16: products in half precision")
    parser.add_argument("--device", default="cpu", help="cuda: on an NVIDIA GPU")
    parser.add_argument("--sample", type=int, default=500, help="characters to write at the end; 0: none")
    parser.add_argument("--temperature", type=float, default=0.8, help="below 1: safer words")
    parser.add_argument("--save", type=Path, help="where to write the weights (safetensors)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> float:
    """Trains on the first nine tenths of the text; returns the loss on the last tenth, in nats per character."""
    given = options(arguments)
    text = given.text.read_text(encoding="utf-8")
    alphabet, tokens = np.unique(list(text), return_inverse=True)
    tokens = tokens.astype(np.int32)
    cut = len(tokens) * 9 // 10
    held = windows(tokens[cut:], given.context, given.context)

    model = ws.models.gpt2(
        layers=given.layers,
        width=given.width,
        heads=given.heads,
        vocabulary=len(alphabet),
        context=given.context,
        dropout=given.dropout,
    )
    began = time.perf_counter()
    history = ws.fit(
        model,
        windows(tokens[:cut], given.context, given.context // 2),
        validation=held,
        loss="cross_entropy",
        optimizer=ws.AdamW(lr=given.lr, betas=(0.9, 0.99), weight_decay=0.1),
        schedule=ws.schedules.cosine(warmup=given.warmup),
        clip_norm=1.0,
        epochs=given.epochs,
        batch_size=given.batch,
        precision=given.precision,
        device=given.device,
    )
    loss = history.last["val_loss"]
    print(f"validation loss {loss:.4f} after {time.perf_counter() - began:.0f} s")
    if given.sample:
        written = sample(model, held[0][0], given.sample, given.temperature, device=given.device)
        print("".join(alphabet[held[0][0]]) + "|" + "".join(alphabet[written]))
    if given.save:
        model.save(given.save)
    return loss


if __name__ == "__main__":
    main()

"""Small language models of letters as scripts: what fits into half a minute of one core, for the board of ``news-letters``."""

from __future__ import annotations

from wmrl_gym.envs.autoresearch.tasks.format import Spec

_HEAD = """\
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd

data = Path(os.environ["DATA_DIR"])
train = pd.read_csv(data / "train.csv", keep_default_na=False)
test = pd.read_csv(data / "test.csv", keep_default_na=False)
letters = "_abcdefghijklmnopqrstuvwxyz"
number = np.full(128, 0)
number[[ord(letter) for letter in letters]] = np.arange(27)


def encode(texts):
    return np.array([number[np.frombuffer(text.encode(), np.uint8)] for text in texts])


known = encode(train["{text}"] + train["{target}"])
asked = encode(test["{text}"])
"""
_TAIL = """\
answer = pd.DataFrame(chances / chances.sum(axis=1, keepdims=True), columns=[f"prob_{{letter}}" for letter in letters])
answer.insert(0, "{id}", test["{id}"])
answer.to_csv(os.environ["SUBMISSION_PATH"], index=False)
"""
_NGRAMS = """\
known = known[: int(len(known) * {share})]
chances = np.full((len(asked), 27), 1 / 27)
for order in range({order} + 1):
    # Only contexts that are asked about are counted, for all orders from none upwards; each one falls back on the one before.
    powers = 27 ** np.arange(order, dtype=np.int64)
    wanted, where = np.unique(asked[:, asked.shape[1] - order :] @ powers, return_inverse=True)
    counts = np.zeros((len(wanted), 27))
    for end in range(order, known.shape[1]):
        context = known[:, end - order : end] @ powers
        place = np.searchsorted(wanted, context).clip(max=len(wanted) - 1)
        hit = wanted[place] == context
        np.add.at(counts, (place[hit], known[hit, end]), 1)
    counts = counts[where]
    total, kinds = counts.sum(axis=1, keepdims=True), (counts > 0).sum(axis=1, keepdims=True)
    {smoothing}
"""
_SMOOTHING = {
    "Witten-Bell": "chances = np.where(total > 0, (counts + kinds * chances) / np.maximum(total + kinds, 1), chances)",
    "discount 0.5": (
        "chances = np.where(total > 0, (np.maximum(counts - 0.5, 0) + 0.5 * kinds * chances) / np.maximum(total, 1), chances)"
    ),
    "discount 0.9": (
        "chances = np.where(total > 0, (np.maximum(counts - 0.9, 0) + 0.9 * kinds * chances) / np.maximum(total, 1), chances)"
    ),
    "prior 3": "chances = (counts + 3 * chances) / (total + 3)",
}
_RECURRENT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(27, 32)
        self.core = nn.{cell}(32, {width}, batch_first=True)
        self.out = nn.Linear({width}, 27)

    def forward(self, letters):
        return self.out(self.core(self.embed(letters))[0])


model = Model()
optimizer = torch.optim.Adam(model.parameters(), 4e-3)
texts, generator, step = torch.tensor(known), np.random.default_rng(0), 0
while time.process_time() < {seconds}:
    start = generator.integers(0, texts.shape[1] - 65)
    batch = texts[generator.integers(0, len(texts), 32)][:, start : start + 65]
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    step += 1
print(step, "steps, loss", loss.item())
with torch.no_grad():
    chances = model(torch.tensor(asked[:, -64:]))[:, -1].softmax(-1).double().numpy()
"""
_NETWORK = """\
from sklearn.neural_network import MLPClassifier

span, generator = {span}, np.random.default_rng(0)
rows = generator.integers(0, len(known), 40_000)
ends = generator.integers(span, known.shape[1], 40_000)
windows = np.stack([known[rows, ends - back] for back in range(1, span + 1)], axis=1)
eye = np.eye(27, dtype=np.float32)
model = MLPClassifier(({width},), batch_size=256, max_iter={rounds}, random_state=0)
model.fit(eye[windows].reshape(len(rows), -1), known[rows, ends])
recent = np.stack([asked[:, -back] for back in range(1, span + 1)], axis=1)
chances = np.full((len(asked), 27), 1e-6)
chances[:, model.classes_] += model.predict_proba(eye[recent].reshape(len(asked), -1))
"""


def language_models(spec: Spec) -> dict[str, str]:
    """Scripts by name."""
    names = {"id": spec.id_column, "target": spec.target, "text": spec.text_column}
    bodies = {
        f"{order} letters, {smoothing}, {share:.0%} of the data": _NGRAMS.format(order=order, share=share, smoothing=line)
        for order in range(1, 8)
        for smoothing, line in _SMOOTHING.items()
        for share in (0.1, 0.3, 1.0)
    }
    for cell, width, seconds in (("GRU", 64, 8), ("GRU", 128, 20), ("LSTM", 128, 16)):
        bodies[f"{cell} of {width}, {seconds} s"] = _RECURRENT.format(cell=cell, width=width, seconds=seconds)
    for span, width, rounds in ((2, 32, 4), (4, 64, 4), (6, 96, 4)):
        bodies[f"network on {span} letters"] = _NETWORK.format(span=span, width=width, rounds=rounds)
    return {name: _HEAD.format(**names) + body + _TAIL.format(**names) for name, body in bodies.items()}

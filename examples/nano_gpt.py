"""A small GPT in the style of nanoGPT, with its own text and a schedule of warm-up and cosine:

metalmark bench examples/nano_gpt.py:nano_gpt --compile off,on
metalmark train examples/nano_gpt.py:nano_gpt --epochs 3 --target val_loss=2.0
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from metalmark import Param, Recipe, Task, Workload

LENGTH, VOCABULARY, WIDTH, STEPS = 64, 128, 64, 600


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        y = self.before(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.inner(self.between(x))


class NanoGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.blocks(self.words(tokens) + places))


def on_torch(params):
    model = NanoGpt()
    rate = lambda step: min(1.0, (step + 1) / 20) * 0.5 * (1 + np.cos(np.pi * min(1.0, step / STEPS)))  # noqa: E731
    loss = lambda logits, targets: cross_entropy(logits.flatten(0, 1), targets.flatten())  # noqa: E731
    return Recipe(model=model, loss=loss, optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
                  schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, rate))  # fmt: skip


def text(params):
    """Sums, written out: enough to learn from. Put your own file's bytes here, or give --data book.txt."""
    lines = "".join(f"{a} plus {b} is {a + b}.\n" for a in range(40) for b in range(40))
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(lines.encode(), np.uint8), LENGTH + 1)[::LENGTH]
    return windows[:, :-1].astype(np.int64), windows[:, 1:].astype(np.int64)


nano_gpt = Workload(name="nano-gpt", title="A GPT of two layers on its own text", data=text, build={"torch": on_torch},
                    params=(Param("batch_size", 16, "samples per step", minimum=1),), task=Task.LANGUAGE,
                    tokens=lambda params: LENGTH)  # fmt: skip

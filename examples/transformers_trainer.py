"""Hugging Face's Trainer with mm.transformers_callback, on a tiny BERT made here from a config: nothing is downloaded.

python examples/transformers_trainer.py [--epochs 3] [--accumulate 1] [--out trained]

It tells praise from blame in sentences that are made up here. A step is an optimiser's step, of --accumulate batches.
"""

import argparse
import random

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import metalmark as mm

KINDS = (["awful", "boring", "dull", "weak"], ["bright", "clever", "fine", "great"])
FILLERS = ["film", "it", "seemed", "the", "thought", "very", "was", "we"]
WORDS = ["[PAD]", *sorted({*KINDS[0], *KINDS[1], *FILLERS})]
LENGTH = 6


def sentences(count, seed):
    """Sentences as the Trainer takes them: dictionaries, with a number for each word."""
    rng, made = random.Random(seed), []
    for _ in range(count):
        label = rng.randrange(2)
        words = [*rng.choices(FILLERS, k=LENGTH - 1), rng.choice(KINDS[label])]
        rng.shuffle(words)
        made.append({"input_ids": [WORDS.index(word) for word in words], "labels": label})
    return made


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--out", default="trained")
    options = parser.parse_args()
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=LENGTH, **size)
    arguments = TrainingArguments(
        options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=5e-3,
        logging_steps=1,
        eval_strategy="epoch",
        report_to=[],
    )
    watched = mm.transformers_callback("praise or blame")
    model = BertForSequenceClassification(config)
    data = {"train_dataset": sentences(256, 0), "eval_dataset": sentences(64, 1)}
    Trainer(model, arguments, **data, callbacks=[watched]).train()
    print(watched)
    print("validation loss:", [round(value, 2) for value in watched.result.curve("eval_loss").values])


if __name__ == "__main__":
    main()

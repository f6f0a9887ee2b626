from __future__ import annotations

from functools import partial

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from metalmark.workload import Params, Recipe
from metalmark.workloads.bert import DROPOUT, LABELS, LEARNING_RATE, MAX_POSITIONS, NORM_EPSILON, TYPES, shape_of


class Logits(nn.Module):
    """transformers' model answers with an object and computes a loss if it can; the logits are what is wanted."""

    def __init__(self, model: BertForSequenceClassification) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, return_dict=False)[0]


def build(params: Params) -> Recipe:
    shape = shape_of(params)
    config = BertConfig(
        vocab_size=shape.vocabulary,
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        max_position_embeddings=MAX_POSITIONS,
        type_vocab_size=TYPES,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
        layer_norm_eps=NORM_EPSILON,
        num_labels=LABELS,
        attn_implementation=params["attention"],
    )
    return Recipe(
        model=Logits(BertForSequenceClassification(config)),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=LEARNING_RATE),
    )

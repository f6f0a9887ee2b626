from functools import partial

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.bert import (
    DROPOUT,
    LABELS,
    LEARNING_RATE,
    MAX_POSITIONS,
    NORM_EPSILON,
    TYPES,
    arrays,
    shape_of,
)


class Logits(nn.Module):
    """transformers' model, from tokens to logits: no loss, and no mask.

    Every row is full. Given no mask, the model's own forward pass asks whether it may leave it out, and some versions
    say no inside a compiled step; attention then falls back from the fused kernel to plain products in float32.
    """

    def __init__(self, model: BertForSequenceClassification) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        bert = self.model.bert
        hidden = bert.encoder(bert.embeddings(input_ids=tokens)).last_hidden_state
        return self.model.classifier(self.model.dropout(bert.pooler(hidden)))


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
    model = BertForSequenceClassification(config)
    if (found := arrays(params)) is not None:
        state = {name: torch.from_numpy(array) for name, array in found.items()}
        model.bert.load_state_dict(state)
    return Recipe(
        model=Logits(model),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=LEARNING_RATE),
    )

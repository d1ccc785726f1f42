"""Answers to the tickets of an evaluation. Apart from model/evaluation.py, which adds them up without torch."""

import math
from collections.abc import Iterator

import numpy as np

from recor_dist.core.config import Config
from recor_dist.core.device import autocast
from recor_dist.core.messages import Generation, Rows
from recor_dist.model.decoding import Decoder
from recor_dist.model.evaluation import evaluation_rng, pad_rows
from recor_dist.model.transformer import Model


def answer_ticket(
    config: Config, model: Model, name: str, decoder: Decoder, rows: Rows, split: str, index: int
) -> Generation:
    """The answers to the prompts of evaluation ticket `index` of a split by a decoder, padded to the ticket's size."""
    random = evaluation_rng(config.seed, split, name, index)
    with autocast(config):
        return decoder.answer(model, pad_rows(rows, config.eval.size).prompts, random)


def whole_tickets(config: Config, rows: int, of: int) -> int:
    """How many rows the tickets have that hold the first `rows` rows of a split of `of` rows."""
    return min(math.ceil(rows / config.eval.size) * config.eval.size, of)


def answer_tickets(
    config: Config, model: Model, name: str, decoder: Decoder, rows: Rows, split: str
) -> Iterator[Generation]:
    """The answers to the first rows of a split, ticket by ticket. They are those that the run's evaluation counts if
    `rows` ends with a ticket or with the split."""
    size = config.eval.size
    for index, start in enumerate(range(0, len(rows), size)):
        ticket = rows.select(np.arange(start, min(start + size, len(rows))))
        yield answer_ticket(config, model, name, decoder, ticket, split, index).select(slice(len(ticket)))

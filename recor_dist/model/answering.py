"""Answers to the tickets of an evaluation. Apart from model/evaluation.py, which adds them up without torch."""

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

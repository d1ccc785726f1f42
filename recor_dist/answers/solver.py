"""A trained model that answers prompts, with its vocabulary and its decoders.

An answer is a function of weights, prompt and decoder only: the random numbers of a decoder depend on the prompt, never
on the other prompts of the batch.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from data.vocab import Vocabulary
from recor_dist.answers.prompts import Text, decode, encode_prompt, encode_response
from recor_dist.core.config import unflatten
from recor_dist.core.messages import Generation, Shape
from recor_dist.core.rng import rng
from recor_dist.core.setting import Mistake
from recor_dist.methods import METHODS, find_decoders, lay_out
from recor_dist.model.decoding import Decoder
from recor_dist.model.transformer import Model
from recor_dist.record.checkpoint import load_model
from recor_dist.record.run_folder import RunFolder


class Solver:
    """Answers prompts with the decoders of the method that the model was trained with."""

    def __init__(self, about: dict[str, Any], model: Model) -> None:
        """`about`: settings, shape and vocabulary as in run.json; `model`: with its weights loaded."""
        self.config = unflatten(about["settings"])
        gpu = self.config.device != "cpu" and torch.cuda.is_available()
        self.model = model.move("cuda") if gpu else model
        self.vocabulary = Vocabulary(tuple(about["vocabulary"]))
        # Those of the run's own test, the headline decoder first; `find` knows more.
        self.decoders = METHODS[self.config.method.name].decoders(self.config.method)

    @staticmethod
    def of_weights(about: dict[str, Any], named: dict[str, np.ndarray]) -> "Solver":
        """From weights by name, as in a safetensors file."""
        model = lay_out(unflatten(about["settings"]), Shape(**about["shape"]))
        model.load(model.flat_weights(named))
        return Solver(about, model)

    def find(self, decoder: str | None) -> tuple[str, Decoder]:
        """A decoder as people write it (core/decoder_text.py), by default the headline decoder, and the name of its
        results. Raises a Mistake if the method does not have it."""
        if not decoder:
            return next(iter(self.decoders.items()))
        found = list(find_decoders(self.config, "decoder", decoder).items())
        if len(found) > 1:
            raise Mistake(f"decoder={decoder}: names {len(found)} decoders; give one")
        return found[0]

    def choose(self, decoder: str | None) -> str:
        """The name of the results of a decoder."""
        return self.find(decoder)[0]

    def encode(self, prompts: Sequence[Text], where: Callable[[int], str]) -> np.ndarray:
        """Ids (R, N) of prompts as people write them. A Mistake begins with `where(index)`, which names the prompt."""
        ids = np.empty((len(prompts), self.model.shape.N), dtype=self.vocabulary.dtype)
        for index, prompt in enumerate(prompts):
            try:
                ids[index] = encode_prompt(self.config.task, self.vocabulary, self.model.shape.N, prompt)
            except Mistake as mistake:
                raise Mistake(f"{where(index)}: {mistake}") from None
        return ids

    def encode_responses(self, responses: Sequence[Text], where: Callable[[int], str]) -> np.ndarray:
        """Ids (R, M) of right responses. A Mistake names the response by `where(index)`."""
        ids = np.empty((len(responses), self.model.shape.M), dtype=np.int64)
        for index, response in enumerate(responses):
            try:
                ids[index] = encode_response(self.vocabulary, self.model.shape.M, response)
            except Mistake as mistake:
                raise Mistake(f"the response in {where(index)}: {mistake}") from None
        return ids

    def answer(self, prompts: np.ndarray, decoder: str | None = None) -> Generation:
        """Answers to prompts (R, N), in one batch."""
        name, decode = self.find(decoder)
        random: Any = RandomByRow([rng(self.config.seed, f"answer/{name}", _number_of(row)) for row in prompts])
        return decode.answer(self.model, prompts, random)

    def answer_all(self, prompts: np.ndarray, decoder: str | None, size: int) -> Iterator[Generation]:
        """Answers to many prompts, `size` at a time."""
        for start in range(0, len(prompts), size):
            yield self.answer(prompts[start : start + size], decoder)


class RandomByRow:
    """The part of a NumPy generator that decoders use, with a separate generator for each row."""

    def __init__(self, generators: list[np.random.Generator]) -> None:
        self.generators = generators

    def random(self, shape: Sequence[int]) -> np.ndarray:
        assert shape[0] == len(self.generators)
        return np.stack([generator.random(tuple(shape[1:])) for generator in self.generators])

    def permuted(self, rows: np.ndarray, axis: int) -> np.ndarray:
        assert axis == 1
        return np.stack([generator.permuted(row) for generator, row in zip(self.generators, rows, strict=True)])


def plain_answers(solver: Solver, generation: Generation) -> list[dict[str, Any]]:
    """Answers as plain values: `order` has slots, from 0, in the order they were filled; `steps` and `confidences` are
    by slot."""
    columns = (generation.responses, generation.orders, generation.steps, generation.confidences)
    return [
        {
            "response": decode(solver.vocabulary, response),
            "order": order.tolist(),
            "steps": steps.tolist(),
            "confidences": [round(float(value), 6) for value in confidences],
        }
        for response, order, steps, confidences in zip(*columns, strict=True)
    ]


def _number_of(prompt: np.ndarray) -> int:
    return int.from_bytes(hashlib.sha256(prompt.astype("<u4").tobytes()).digest()[:8], "little")


def load_solver(out: str) -> Solver:
    """The newest weights of the run in `out`."""
    model, _ = load_model(out)
    return Solver(RunFolder.open(out).require_run(), model)

"""A model that answers prompts, with its vocabulary and its decoders.

An answer is a function of weights, prompt and decoder only: the random numbers of a decoder depend on the prompt, never
on the other prompts of the batch.

Nothing here needs the table of tasks or of methods, so all of this can be exported (one_file.py).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data.vocab import Vocabulary
from recor_dist.answers.prompts import Reader, Text, decode, encode_response
from recor_dist.core.messages import Generation
from recor_dist.core.rng import rng
from recor_dist.core.setting import Mistake
from recor_dist.model.decoding import Decoder, Family, find_in
from recor_dist.model.transformer import Model


class Answering:
    """Answers prompts with the decoders of the method that the model was trained with."""

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        decoders: Mapping[str, Decoder],
        families: Mapping[str, Family],
        seed: int,
        task: Any,
        reader: Reader,
    ) -> None:
        """`model` has its weights. `decoders` are those of the run's own test, the headline decoder first; `families`
        are all. `seed` is that of the run, `task` its settings."""
        self.model, self.vocabulary, self.decoders, self.families = model, vocabulary, decoders, families
        self.seed, self.task, self.reader = seed, task, reader

    @property
    def names(self) -> list[str]:
        """All decoders, those of the run's own test first."""
        return list(dict.fromkeys((*self.decoders, *self.families)))

    def find(self, decoder: str | None) -> tuple[str, Decoder]:
        """A decoder as people write it (core/decoder_text.py), by default the headline decoder, and the name of its
        results. Raises a Mistake if the method does not have it."""
        if not decoder:
            return next(iter(self.decoders.items()))
        found = list(find_in(self.families, "decoder", decoder).items())
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
                ids[index] = self.reader.encode(self.task, self.vocabulary, self.model.shape.N, prompt)
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
        random: Any = RandomByRow([rng(self.seed, f"answer/{name}", _number_of(row)) for row in prompts])
        return decode.answer(self.model, prompts, random)

    def answers(self, prompts: Sequence[Text], decoder: str | None = None) -> list[dict[str, Any]]:
        """Answers to prompts as people write them, as plain values."""
        ids = self.encode(prompts, lambda index: f"prompt {index + 1}")
        return plain_answers(self, self.answer(ids, decoder)) if prompts else []

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


def plain_answers(solver: Answering, generation: Generation) -> list[dict[str, Any]]:
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

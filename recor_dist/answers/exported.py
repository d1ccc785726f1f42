"""The part of an exported model's file that loads the folder it lies in, and answers prompts of a command line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import safetensors.numpy

from data.vocab import Vocabulary
from recor_dist.answers.answering import Answering
from recor_dist.answers.prompts import Reader
from recor_dist.core.messages import Shape
from recor_dist.core.setting import Mistake
from recor_dist.model.decoding import Decoder, Family
from recor_dist.model.transformer import Model


def load_exported(
    folder: str | Path, config: str, decoders: dict[str, Decoder], families: dict[str, Family], reader: Reader
) -> Answering:
    """The model in a folder with `model.safetensors` and a JSON file that describes it."""
    about = json.loads(Path(folder, config).read_text())
    coordinates = {name: np.array(values) for name, values in about["coordinates"].items()}
    sizes: Any = _group(about["settings"], "model")
    model = Model(sizes, Shape(**about["shape"]), about["settings"].get("method.order_queries", 0), coordinates)
    model.load(model.flat_weights(safetensors.numpy.load_file(Path(folder, "model.safetensors"))))
    task = _group(about["settings"], "task")
    vocabulary = Vocabulary(tuple(about["vocabulary"]))
    return Answering(model, vocabulary, decoders, families, about["settings"]["seed"], task, reader)


def _group(settings: dict[str, Any], name: str) -> SimpleNamespace:
    inside = {key.split(".", 1)[1]: value for key, value in settings.items() if key.startswith(f"{name}.")}
    return SimpleNamespace(**inside)


def answer_command_line(load: Callable[[], Answering]) -> None:
    """Prints a line of JSON per prompt. A word `decoder=NAME` chooses the decoder."""
    words = sys.argv[1:]
    chosen = [word.removeprefix("decoder=") for word in words if word.startswith("decoder=")]
    prompts = [word for word in words if not word.startswith("decoder=")]
    if not prompts or {"-h", "--help"} & set(words):
        print(f"usage: python {sys.argv[0]} [decoder=NAME] PROMPT ...", file=sys.stderr)
        sys.exit(0 if prompts else 2)
    try:
        model = load()
        decoder = model.choose(chosen[-1] if chosen else None)
        answers = model.answers(prompts, decoder)
    except Mistake as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        sys.exit(2)
    for prompt, answer in zip(prompts, answers, strict=True):
        print(json.dumps({"prompt": prompt, **answer, "decoder": decoder}, ensure_ascii=False))

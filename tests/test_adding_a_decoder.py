"""The code in docs/adding_a_decoder.md works as it stands there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recor_dist.core.compose import compose
from recor_dist.core.names import name_of
from recor_dist.core.rng import rng
from recor_dist.methods import METHODS, Method, find_decoders
from recor_dist.model import decoding, rules
from recor_dist.model.decoding import Decoder
from recor_dist.model.rules import RULES
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, log_softmax

PAGE = Path(__file__).parent.parent / "docs/adding_a_decoder.md"
M, V = 5, 4


def shown() -> list[str]:
    """The Python code on the page, block by block."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.fixture
def table() -> Iterator[dict[str, Any]]:
    """RULES with the row of the page; it is removed after the test."""
    before = dict(RULES)
    names = dict(vars(rules))
    for block in shown()[:2]:
        exec(compile(block, str(PAGE), "exec"), names)
    yield RULES
    RULES.clear()
    RULES.update(before)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_rule_of_the_page_writes_the_most_confident_slots(k: int) -> None:
    config = compose(["scale=smoke", "method=mdm"])
    ((name, decoder),) = find_decoders(config, "decoders", f"several:{k}").items()
    assert (name, name_of(name)) == (f"mdm_several_k{k}", f"MDM, several, k={k}")
    model, prompts = small_model(M=M, V=V, seed=3), random_rows(4, M=M, V=V).prompts
    generation = decoder.answer(model, prompts, rng(0, "row", 0))
    slow = SlowModel(model)
    for row, prompt in enumerate(prompts.tolist()):
        response: list[int | None] = [None] * M
        for step in range(1, -(-M // k) + 1):
            logits = slow.denoised_logits(prompt, response)
            left = [slot for slot in range(M) if response[slot] is None]
            for slot in sorted(left, key=lambda slot: -log_softmax(logits[slot]).max())[:k]:
                response[slot] = int(logits[slot].argmax())
                assert generation.steps[row, slot] == step
        assert generation.responses[row].tolist() == response


@pytest.mark.usefixtures("table")
def test_every_method_that_scores_any_slot_has_the_rule() -> None:
    for method, prefix in {"recor": "recor", "ao_arm": "ao_arm", "mdm": "mdm"}.items():
        config = compose(["scale=smoke", f"method={method}"])
        assert list(find_decoders(config, "decoders", "several")) == [f"{prefix}_several_k2"]


def test_the_other_decoder_of_the_page_writes_from_right_to_left(monkeypatch: pytest.MonkeyPatch) -> None:
    names = dict(vars(decoding)) | {"Decoder": Decoder}
    for block in shown()[2:]:
        exec(compile(block, str(PAGE), "exec"), names)
    row = vars(METHODS["ao_arm"]) | {"families": lambda _: names["families"]}
    monkeypatch.setitem(METHODS, "ao_arm", Method(**row))
    config = compose(["scale=smoke", "method=ao_arm"])
    decoder = find_decoders(config, "decoders", "backward")["ao_arm_backward"]
    generation = decoder.answer(small_model(), random_rows(3).prompts, rng(0, "row", 0))
    np.testing.assert_array_equal(generation.orders, [[3, 2, 1, 0]] * 3)

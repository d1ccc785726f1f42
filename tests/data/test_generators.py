"""ARG and MUL, against slow Python from their definitions."""

import math

import numpy as np
import pytest

from data import arg, mul
from data.arg import ArgConfig
from data.mul import MulConfig
from data.splits import SPLITS, split_of
from data.tasks import task_of
from recor_dist.core.compose import compose


def digits(text: str) -> np.ndarray:
    return np.array([list(map(int, text))], dtype=np.uint8)


def test_the_papers_arg_example_comes_out_exactly() -> None:
    assert arg.respond(digits("64610246434563440135"), 7).tolist() == digits("15443515654216654535").tolist()


@pytest.mark.parametrize(("L", "p"), [(1, 3), (2, 5), (8, 5), (20, 7), (30, 251)])
def test_arg_is_its_formula(L: int, p: int) -> None:
    rows = arg.sample(ArgConfig(length=L, modulus=p), np.random.default_rng(0), 20)
    for x, y in zip(rows.prompts.tolist(), rows.responses.tolist(), strict=True):
        assert y[-1] == x[-1]
        for i in range(L - 1):
            assert y[i] == math.prod((later + x[i]) % (p - 1) + 1 for later in y[i + 1 :]) % p
    assert rows.prompts.max() < p


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 2), (20, 2), (12, 12)])
def test_mul_is_multiplication(n: int, m: int) -> None:
    task = MulConfig(digits=n, factor_digits=m)
    rows = mul.sample(task, np.random.default_rng(0), 300)
    vocabulary = mul.vocabulary(task)
    seen = set()
    for prompt, response in zip(rows.prompts, rows.responses, strict=True):
        text, product = "".join(vocabulary.decode(prompt)), "".join(vocabulary.decode(response))
        x, y = text.removesuffix("=").split("*")
        assert (len(x), len(y), len(product)) == (n, m, n + m)
        assert x[0] != "0"
        assert 2 <= int(y) < 10**m
        assert int(x) * int(y) == int(product)
        seen.add(int(y))
    if m == 1:
        assert seen == set(range(2, 10))


def test_mul_has_the_papers_lengths() -> None:
    rows = mul.sample(MulConfig(), np.random.default_rng(0), 2)
    assert (rows.prompts.shape[1], rows.responses.shape[1]) == (24, 22)


@pytest.mark.parametrize("task", ["arg", "mul"])
def test_no_prompt_is_in_two_splits_for_any_seed(task: str) -> None:
    prompts: dict[str, set[bytes]] = {split: set() for split in SPLITS}
    for seed in (0, 1):
        made = task_of(compose([f"task={task}", "scale=smoke", f"task.seed={seed}", "task.train_rows=2000"]))
        for split in SPLITS:
            for index, rows in enumerate(made.sizes[split]):
                shard = made.make_shard(split, index)
                assert len(shard) == rows
                prompts[split] |= {row.tobytes() for row in shard.prompts}
    assert not prompts["train"] & prompts["test"]
    assert not prompts["train"] & prompts["val"]
    assert not prompts["val"] & prompts["test"]


def test_each_held_out_split_gets_a_sixteenth_of_all_prompts() -> None:
    shares = np.bincount(split_of(str(i).encode() for i in range(20_000))) / 20_000
    np.testing.assert_allclose(shares, [14 / 16, 1 / 16, 1 / 16], atol=0.01)


def test_a_shard_is_a_pure_function_of_its_name() -> None:
    words = ["task=arg", "scale=smoke"]
    one, two = task_of(compose(words)), task_of(compose(words))
    two.make_shard("train", 0)  # in another order, and more of them
    assert np.array_equal(one.make_shard("train", 1).prompts, two.make_shard("train", 1).prompts)
    assert not np.array_equal(one.make_shard("train", 0).prompts, one.make_shard("train", 1).prompts)
    other = task_of(compose([*words, "task.seed=1"]))
    assert not np.array_equal(one.make_shard("train", 1).prompts, other.make_shard("train", 1).prompts)

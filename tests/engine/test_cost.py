"""FLOPs per answer: counted by torch, and by hand."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recor_dist.core.compose import compose
from recor_dist.core.config import Config
from recor_dist.core.messages import Shape
from recor_dist.core.rng import rng
from recor_dist.engine.cost import costs_of
from recor_dist.methods import METHODS, build_model
from tests.conftest import random_rows

PAPER = Shape(N=20, M=20, V=7)


def config_of(method: str, *overrides: str) -> Config:
    sizes = ["model.layers=3", "model.width=48", "model.heads=4", "device=cpu"]
    return compose(["scale=smoke", f"method={method}", *sizes, *overrides])


def layer(D: int, new: int, read: int, keys: int) -> int:
    """One layer: `new` rows compute keys and values, `read` rows attend to `keys` of them and pass the MLP."""
    return 2 * (new * D * 2 * D + read * D * D + 2 * read * keys * D + read * D * D + 2 * read * D * 4 * D)


def one_denoising(D: int, layers: int, shape: Shape) -> int:
    rows = shape.N + 1 + shape.M
    last = layer(D, rows, shape.M, rows)  # of the last layer only the slots are read
    return (layers - 1) * layer(D, rows, rows, rows) + last + 2 * shape.M * D * shape.V


def left_to_right(D: int, layers: int, shape: Shape) -> int:
    prompt = shape.N + 1
    total = (layers - 1) * layer(D, prompt, prompt, prompt) + layer(D, prompt, 1, prompt)
    total += sum(layers * layer(D, 1, 1, prompt + t) for t in range(1, shape.M))
    return total + 2 * shape.M * D * shape.V


def with_a_policy(D: int, layers: int, shape: Shape) -> int:
    """The main stream as in `left_to_right`, and one token query per step."""
    asked = sum(layers * layer(D, 0, 1, shape.N + 1 + t) for t in range(shape.M))
    return left_to_right(D, layers, shape) + asked + 2 * shape.M * D * shape.M


def in_given_orders(D: int, layers: int, shape: Shape) -> int:
    """The same without the order: of the main stream, the last layer computes keys and values only."""
    prompt, written = shape.N + 1, range(1, shape.M)
    main = (layers - 1) * layer(D, prompt, prompt, prompt) + layer(D, prompt, 0, 0)
    main += sum((layers - 1) * layer(D, 1, 1, prompt + t) + layer(D, 1, 0, 0) for t in written)
    asked = sum(layers * layer(D, 0, 1, prompt + t) for t in range(shape.M))
    return main + asked + 2 * shape.M * D * shape.V


@pytest.mark.parametrize(
    ("method", "name", "passes", "flops"),
    [
        ("clm", "clm", 1, left_to_right),
        ("recor", "recor", 2, with_a_policy),
        ("ar_gt", "ar_gt", 2, with_a_policy),
        ("ao_arm", "ao_arm", 2, in_given_orders),
        ("mdm", "mdm", 20, lambda *sizes: 20 * one_denoising(*sizes)),
        ("mdm", "adamdm_prob", 20, lambda *sizes: 20 * one_denoising(*sizes)),
        ("mdm", "adamdm_margin_T2", 2, lambda *sizes: 2 * one_denoising(*sizes)),
    ],
)
def test_the_cost_of_an_answer_is_that_of_its_matrix_products(
    method: str, name: str, passes: int, flops: Callable[[int, int, Shape], int]
) -> None:
    cost = costs_of(config_of(method), PAPER)[name]
    assert cost.forward_passes == passes
    assert cost.flops == flops(48, 3, PAPER)


def test_products_by_onednn_are_counted() -> None:
    cost = costs_of(config_of("recor", "model.width=384", "model.heads=12"), PAPER)["recor"]
    assert cost.flops == with_a_policy(384, 3, PAPER)


def test_two_passes_of_diffusion_cost_about_as_much_as_recor_and_twenty_passes_ten_times_that() -> None:
    recor = costs_of(config_of("recor"), PAPER)["recor"].flops
    mdm = costs_of(config_of("mdm"), PAPER)
    assert recor < mdm["mdm_T2"].flops < 1.5 * recor, "ReCOR queries only response slots, not the prompt again"
    assert mdm["mdm"].flops == 10 * mdm["mdm_T2"].flops


def test_order_queries_cost_a_pass_each() -> None:
    costs = [costs_of(config_of("recor", f"method.order_queries={C}"), PAPER)["recor"] for C in (0, 1, 4)]
    assert [cost.forward_passes for cost in costs] == [2, 3, 6]
    assert costs[0].flops < costs[1].flops < costs[2].flops


def flops_of_a_step(method: str) -> float:
    """FLOPs of a training step of ARG at the paper's scale, from its rows to its gradient."""
    config = compose(["task=arg", "scale=paper", f"method={method}", "device=cpu"])
    model, row, plain = build_model(config, PAPER), METHODS[method], random_rows(2, 20, 20, 7)
    model.initialise(0)
    rows = replace(plain, orders=np.tile(np.arange(20), (2, 1)))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        batch = row.prepare(config.method, model, rows, rng(0, "rollout", 0, 0), 0)
        row.loss(config.method, model, batch, None).total.backward()
    return counter.get_total_flops() / len(rows) * config.batch_size


def test_with_twice_the_rows_a_step_of_clm_or_mdm_costs_as_much_as_one_of_recor() -> None:
    recor = flops_of_a_step("recor")
    assert flops_of_a_step("clm") == pytest.approx(recor, rel=0.05)
    assert flops_of_a_step("mdm") == pytest.approx(recor, rel=0.05)
    assert flops_of_a_step("ar_gt") == pytest.approx(1.5 * recor, rel=0.05), (
        "an additional query stream, and twice the rows"
    )

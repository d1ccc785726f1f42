"""What holds for every method: reproducibility, what it may use, and how to add one."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.worker import Worker
from data.prepare import open_data
from data.tasks import task_of
from recor_dist.core.config import SCHEMAS, Config
from recor_dist.core.messages import Ticket, TicketGradient
from recor_dist.core.method_settings import RecorConfig
from recor_dist.core.sealed import open_file
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.methods import METHODS, build_model, make_learner, make_worker
from tests.engine.test_loop import run_until_killed

Configure = Callable[..., Config]
ROOT = Path(__file__).parent.parent
NO_GRADIENTS: Any = None  # these tests compute none
EVERY = [
    *([name] for name in METHODS),
    ["recor", "method.random_contexts=0.9", "method.random_contexts_end=0.1"],
    ["mdm", "method.suffix=true"],
    ["mdm", "method.masking=progressive"],
    ["ar_gt", "method.order_queries=2"],
]


def overrides_of(method: list[str]) -> list[str]:
    return [f"method={method[0]}", *method[1:]]


def test_every_method_has_a_schema() -> None:
    assert set(METHODS) == set(SCHEMAS["method"])


KILLED = [  # pairs of runs; one with weights in its tickets and one without are enough for every change
    pytest.param(method, id=" ".join(method), marks=[] if method in (["recor"], ["mdm"]) else pytest.mark.slow)
    for method in EVERY
]


@pytest.mark.parametrize("method", KILLED)
def test_every_method_gives_the_same_result_if_killed_and_resumed(
    method: list[str], tmp_path: Path, config_in: Configure
) -> None:
    """The same weights, and the same metrics by every decoder: killed and resumed or not, validated or not."""
    overrides = [*overrides_of(method), "lag=1", "checkpoint.every=8", "eval.every=0", "task.test_rows=30"]
    whole = train(config_in(*overrides, f"out={tmp_path}/whole", "eval.every=3"))
    run_until_killed("step:13", ["scale=smoke", f"data.dir={tmp_path}/shards", f"out={tmp_path}/out", *overrides])
    resumed = train(config_in(*overrides))
    for result in (whole, resumed):
        del result["seconds_of_last_start"]
    assert resumed == whole
    other = train(config_in(*overrides, "seed=1", f"out={tmp_path}/other"))
    assert other["weights_sha256"] != whole["weights_sha256"]


@pytest.mark.parametrize("method", EVERY, ids=" ".join)
def test_gradients_computed_by_workers_give_the_bits_of_the_learners_own(
    method: list[str], config_in: Configure
) -> None:
    """Two steps of three tickets, computed by two workers that evaluate in between, and added in group order."""
    config = config_in(*overrides_of(method), "device=cpu", "precision=float32", "lag=0")
    data = open_data(config, task_of(config))
    alone, adding = (make_learner(config, data.shape, 10) for _ in range(2))
    workers = [make_worker(config, data) for _ in range(2)]
    for step in range(2):
        tickets = [Ticket(step, group, step) for group in range(3)]
        gradients: dict[Ticket, TicketGradient] = {}
        for index, ticket in enumerate(reversed(tickets)):
            worker = workers[index % 2]
            worker.load(step, adding.versions[step])
            worker.evaluate("val", 0)
            part = worker.differentiate(ticket)
            gradients[ticket] = replace(part, gradient=part.gradient.copy())
            gradients[ticket].gradient.setflags(write=False)  # as it comes out of the object store
        adding.take([gradients[tickets[0]]])
        adding.take([gradients[ticket] for ticket in tickets[1:]])
        workers[0].load(step, alone.versions[step])
        assert adding.finish() == alone.update([workers[0].roll_out(ticket) for ticket in tickets])
        assert adding.versions[step + 1].tobytes() == alone.versions[step + 1].tobytes()
        assert adding.versions[step + 1].tobytes() != workers[0].model.weights().tobytes(), "it has learned something"


@pytest.mark.parametrize("method", EVERY, ids=" ".join)
def test_a_ticket_and_an_evaluation_are_the_same_on_every_worker(method: list[str], config_in: Configure) -> None:
    config = config_in(*overrides_of(method), "device=cpu", "precision=float32")
    data, row = open_data(config, task_of(config)), METHODS[method[0]]
    workers = []
    for _ in range(2):
        worker = make_worker(config, data)
        worker.model.initialise(3)
        worker.version = 0
        workers.append(worker)
    workers[1].roll_out(Ticket(9, 0, 0))  # earlier tickets must not matter
    workers[1].evaluate("test", 1)
    a, b = (worker.roll_out(Ticket(4, 1, 0)) for worker in workers)
    assert type(a) is type(b)
    for name, value in vars(a).items():
        np.testing.assert_array_equal(value, getattr(b, name))
    first, second = (worker.evaluate("test", 0) for worker in workers)
    assert list(first) == list(second) == list(row.decoders(config.method))
    for name, sums in first.items():
        assert (sums.exact, sums.tokens, sums.agreement) == (
            second[name].exact,
            second[name].tokens,
            second[name].agreement,
        )
        np.testing.assert_array_equal(sums.fills, second[name].fills)
    assert list(workers[0].evaluate("val", 0)) == list(first)[:1], "validation runs only the first decoder"


WITHOUT_WEIGHTS = [name for name, row in METHODS.items() if not row.uses_weights(SCHEMAS["method"][name]())]


@pytest.mark.parametrize("name", WITHOUT_WEIGHTS)
def test_a_method_without_weights_never_uses_the_model(name: str, config_in: Configure) -> None:
    config = config_in(f"method={name}", "device=cpu", "precision=float32")
    data = open_data(config, task_of(config))
    worker = Worker(config, data, None, METHODS[name].prepare, {}, False, NO_GRADIENTS)
    batch = worker.roll_out(Ticket(5, 1, 3))
    assert batch.version == 3
    assert len(batch.prompts) == config.rollout_size


def test_a_ticket_of_a_method_with_weights_is_refused_without_them(config_in: Configure) -> None:
    config = config_in("device=cpu", "precision=float32")
    data = open_data(config, task_of(config))
    model = build_model(config, data.shape)
    worker = Worker(config, data, model, METHODS["recor"].prepare, {}, True, NO_GRADIENTS)
    with pytest.raises(AssertionError, match="does not match the loaded weights"):
        worker.roll_out(Ticket(0, 0, 0))


def test_a_ticket_has_the_share_of_random_contexts_of_its_step(config_in: Configure) -> None:
    """A run of 18 steps, whose tickets have 16 rows: 0.9 at the first step, 0.1 at the last."""
    config = config_in("method.random_contexts=0.9", "method.random_contexts_end=0.1", "device=cpu")
    data = open_data(config, task_of(config))
    shares = []

    def prepare(method: RecorConfig, *_: Any) -> None:
        shares.append(method.random_contexts)

    worker = Worker(config, data, None, prepare, {}, False, NO_GRADIENTS)
    for step in (0, 17, 4):
        worker.roll_out(Ticket(step, 1, 0))
    assert shares == pytest.approx([0.9, 0.1, 0.9 - 0.8 * 4 / 17])


def test_an_mdm_run_reports_every_decoder_with_its_cost(tmp_path: Path, config_in: Configure) -> None:
    result = train(config_in("method=mdm", "method.steps=5", "method.decoder=top_margin"))
    decoders = result["test"]["decoders"]
    assert list(decoders) == [
        "adamdm_margin", "mdm", "adamdm_prob", "adamdm_margin_T2", "mdm_T2", "adamdm_prob_T2",
    ]  # fmt: skip
    assert list(result["val"]["decoders"]) == ["adamdm_margin"]
    for name, figures in decoders.items():
        assert figures["forward_passes"] == (2 if name.endswith("_T2") else 5)
        assert figures["flops"] * decoders["mdm"]["forward_passes"] == (
            decoders["mdm"]["flops"] * figures["forward_passes"]
        )
        assert figures["rows"] == 40
    headline = {key: value for key, value in result["test"].items() if key != "decoders"}
    assert headline.items() <= decoders["adamdm_margin"].items()
    assert open_file((tmp_path / "out/result.json").read_bytes()) == result


def write_rows(folder: Path, ordered: bool) -> str:
    with (folder / "rows.jsonl").open("w") as file:
        for i in range(400):
            row = {"prompt": f"{i:03d}", "response": f"{i:03d}"[::-1]}
            file.write(json.dumps(row | ({"order": [2, 0, 1]} if ordered else {})) + "\n")
    return f"data.source={folder}/rows.jsonl"


def test_ar_gt_follows_the_order_given_with_the_rows(tmp_path: Path, config_in: Configure) -> None:
    result = train(config_in("task=custom", write_rows(tmp_path, ordered=True), "method=ar_gt", "epochs=6"))
    assert result["test"]["kendall_tau"] == 1.0


@pytest.mark.parametrize("task", ["sudoku", "zebra"])
def test_ar_gt_follows_the_solver_of_a_puzzle(task: str, config_in: Configure) -> None:
    config = config_in(f"task={task}", "method=ar_gt", "device=cpu", "precision=float32")
    data = open_data(config, task_of(config))
    worker = Worker(config, data, None, METHODS["ar_gt"].prepare, {}, False, NO_GRADIENTS)
    batch, rows = worker.roll_out(Ticket(0, 0, 0)), data.take(worker.row_order, 0, config.rollout_size)
    assert (batch.order == rows.orders).all()
    assert (batch.tokens == np.take_along_axis(rows.responses, rows.orders.astype(np.int64), axis=1)).all()
    assert not (batch.order == np.arange(batch.order.shape[1])).all(), "the solver does not work from left to right"


@pytest.mark.parametrize("method", ["clm", "mdm", "ao_arm"])
def test_baselines_learn_to_reverse_digits(method: str, tmp_path: Path, config_in: Configure) -> None:
    """The response is the prompt, three digits, reversed. No order is better than another: every method learns it."""
    sizes = ["model.width=32", "model.heads=2", "batch_size=60", "rollout_size=60", "epochs=60", "learner.lr=1e-2"]
    overrides = ["task=custom", write_rows(tmp_path, ordered=False), f"method={method}", *sizes, "eval.every=0"]
    assert train(config_in(*overrides))["test"]["exact_match"] >= 0.9


def test_ar_gt_is_refused_if_no_order_is_known(tmp_path: Path, config_in: Configure) -> None:
    config = config_in("task=custom", write_rows(tmp_path, ordered=False), "method=ar_gt")
    with pytest.raises(Mistake, match=r"method=ar_gt: learns from a known order, and task=custom has none; give every"):
        train(config)
    assert not (tmp_path / "out").exists(), "refused before the run starts"
    for name in METHODS.keys() - {"ar_gt"}:
        task_of(config_in("task=custom", write_rows(tmp_path, ordered=False), f"method={name}"))


def test_the_worked_example_in_the_docs_is_the_real_code() -> None:
    """docs/adding_a_method.md shows a whole method: each excerpt is in the file that it names."""
    text = (ROOT / "docs/adding_a_method.md").read_text()
    shown = re.findall(r"^`([\w/.]+)`:?\n\n```\w*\n(.*?)```", text, re.M | re.S)
    assert [path for path, _ in shown] == [
        "recor_dist/core/method_settings.py", "actors/orders.py", "learner/baselines.py",
        "recor_dist/model/decoding.py", "recor_dist/methods.py",
    ]  # fmt: skip
    for path, code in shown:
        assert code in (ROOT / path).read_text(), f"{path} does not contain this excerpt"
    lines = [line for _, code in shown for line in code.splitlines() if line.strip()]
    assert len(lines) <= 30

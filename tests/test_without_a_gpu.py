"""What can be proven about GPUs without one: what a run computes on its device is computed on torch's `meta` device.

A tensor on `meta` has a shape, a dtype and a device, but no values. So a tensor left on the host, a wait for the device
where none is meant, or a wrong dtype under autocast fails here as it would on a GPU.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import actors.worker
import learner.gradients
import recor_dist.methods
import recor_dist.model.answering
from actors.worker import Worker
from data.prepare import open_data
from data.tasks import task_of
from recor_dist.core import device
from recor_dist.core.compose import compose
from recor_dist.core.config import Config
from recor_dist.core.messages import Shape, Ticket
from recor_dist.methods import METHODS, families_of, lay_out, make_learner, make_worker
from recor_dist.model.evaluation import evaluation_rng
from recor_dist.model.transformer import Model

Configure = Callable[..., Config]
aten = torch.ops.aten
EVERY = [
    *([f"method={name}"] for name in METHODS if name != "mdm"),
    ["method=mdm", "method.steps=3"],
    ["method=recor", "method.order_queries=2", "method.gamma=0.9", "method.exploration=entropy"],
    ["method=recor", "method.algorithm=ppo", "method.reward=dense", "method.random_contexts=0.5"],
    ["method=recor", "model.positions=coordinates", "model.loops=2", "learner.optimizer=muon"],
    ["method=mdm", "method.steps=3", "method.masking=progressive"],
    ["method=mdm", "method.steps=3", "method.suffix=true", "method.reweight_tokens=true"],
]
RUNS = [(EVERY[0], "float32"), *((overrides, "bfloat16") for overrides in EVERY)]  # bfloat16 has float32 in it
every = pytest.mark.parametrize(("overrides", "precision"), RUNS, ids=[" ".join([*o, kind]) for o, kind in RUNS])
PRECISE = {"log_sigmoid_forward", "logsumexp", "_log_softmax", "exp", "expm1", "binary_cross_entropy_with_logits"}
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
VALUE = 2.0  # of every number that comes back to the host; more than the largest norm of a gradient
WAITS = ("wait", "to host", "to device, waiting")
# What torch refuses on a GPU with deterministic algorithms, from the documentation of use_deterministic_algorithms.
REFUSED_ON_A_GPU = {"cumsum", "histc", "median", "put_", "bincount", "nll_loss2d_forward"}


class OneDevice(TorchDispatchMode):
    """Checks every operation, also those of backward: its tensors are on one device. Copies are the exception.

    This is the one place where values that do not exist come back to the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []  # operations, `to host`, `to device`, and `wait` where a number is read

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        with self:  # composite operations arrive whole in inference mode
            if (result := op.decompose(*args, **kwargs)) is not NotImplemented:
                return result
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        places = {x.device.type for x in tensors}
        name = op.overloadpacket.__name__
        if op is aten._local_scalar_dense.default and tensors[0].is_meta:
            self.events.append("wait")
            return VALUE
        if op is aten.nonzero.default and tensors[0].is_meta:
            self.events.append("wait")
            return tensors[0].new_zeros((1, tensors[0].dim()), dtype=torch.int64)
        if op is aten._to_copy.default and kwargs.get("device"):
            target = torch.device(kwargs["device"]).type
            if places == {"meta"} and target == "cpu":
                self.events.append("to host")
                return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
            if places == {"cpu"} and target == "meta":
                self.events.append("to device" if kwargs.get("non_blocking") else "to device, waiting")
        elif op is aten.copy_.default and len(places) == 2:
            self.events.append("to device" if len(args) > 2 and args[2] else "to device, waiting")
        else:
            assert len(places) < 2, f"{op} mixes devices: {[(x.device.type, tuple(x.shape)) for x in tensors]}"
        kinds_of_float = {x.dtype for x in tensors if x.is_meta and x.is_floating_point()}
        assert torch.float16 not in kinds_of_float, f"{op} in float16"
        assert name not in PRECISE or torch.bfloat16 not in kinds_of_float, f"{op} in bfloat16"
        refused = "meta" in places and name in REFUSED_ON_A_GPU and tensors[0].is_floating_point()
        assert not refused, f"{op} is refused on a GPU"
        self.events.append(str(op))
        return op(*args, **kwargs)

    def check_that_no_step_waits(self) -> None:
        """Between the first and the last product, nothing crosses to the host, and this process waits for no copy."""
        products = [i for i, event in enumerate(self.events) if event.startswith(PRODUCTS)]
        assert products
        between = self.events[products[0] : products[-1]]
        assert not [event for event in between if event in WAITS]


class Autocast(TorchFunctionMode):
    """What autocast does on a GPU, which it does not do on `meta`: products in bfloat16, these others in float32."""

    LOWER = ("linear", "matmul", "__matmul__", "bmm", "baddbmm", "scaled_dot_product_attention")
    FULL = ("softmax", "log_softmax", "layer_norm", "cross_entropy", "binary_cross_entropy_with_logits", "exp", "expm1",
            "log", "pow", "sum", "cumsum", "prod", "norm")  # fmt: skip

    def __torch_function__(self, call: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = getattr(call, "__name__", "")
        to = torch.bfloat16 if name in self.LOWER else torch.float32 if name in self.FULL else None
        if to is not None:
            cast = lambda x: x.to(to) if x.is_floating_point() else x  # noqa: E731
            args, kwargs = tree_map_only(Tensor, cast, (args, kwargs))
        return call(*args, **(kwargs or {}))


def on_meta(model: Model) -> Model:
    """torch does not let a parameter in memory become one on `meta`, so there are new parameters first."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(parameter.to("meta")))
    return model.move("meta")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def configure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Configurations on the CPU, and on `meta`."""

    def make(device: str, precision: str, *overrides: str) -> Config:
        config = compose(["scale=smoke", "device=cpu", f"data.dir={folder}", f"precision={precision}", *overrides])
        config.device = device
        return config

    def build(config: Config, shape: Shape) -> Model:
        monkeypatch.setattr(Model, "_dtype", lambda _: getattr(torch, config.precision))
        model = lay_out(config, shape)
        return on_meta(model) if config.device == "meta" else model

    def autocast(config: Config) -> AbstractContextManager:
        emulated = config.device == "meta" and config.precision == "bfloat16"
        return Autocast() if emulated else device.autocast(config)

    for caller in (actors.worker, learner.gradients, recor_dist.model.answering):
        monkeypatch.setattr(caller, "autocast", autocast)
    monkeypatch.setattr(recor_dist.methods, "build_model", build)
    module = sys.modules[torch.optim.Optimizer.__module__]
    fused = [*module._get_fused_kernels_supported_devices(), "meta"]
    monkeypatch.setattr(module, "_get_fused_kernels_supported_devices", lambda: fused)
    return make


def both(configure: Configure, precision: str, overrides: list[str]) -> Iterator[tuple[Config, Worker]]:
    """The same worker on the CPU and on `meta`."""
    for kind in ("cpu", "meta"):
        config = configure(kind, precision, *overrides)
        worker = make_worker(config, open_data(config, task_of(config)))
        worker.version = 0
        yield config, worker


def kinds(message: Any) -> dict[str, tuple]:
    """Shape and dtype of every array in a message."""
    return {name: (x.shape, x.dtype) for name, x in vars(message).items() if isinstance(x, np.ndarray)}


@every
def test_a_ticket_is_rolled_out_on_the_device_without_waiting(
    overrides: list[str], precision: str, configure: Configure
) -> None:
    expected, batches = both(configure, precision, overrides), []
    for config, worker in expected:
        with OneDevice() as log:
            batches.append(worker.roll_out(Ticket(0, 0, 0)))
        if config.device == "meta" and worker.uses_weights:
            log.check_that_no_step_waits()
    assert kinds(batches[0]) == kinds(batches[1])


@every
def test_a_step_is_learned_on_the_device_and_waits_only_for_its_numbers(
    overrides: list[str], precision: str, configure: Configure
) -> None:
    """From batches, and from gradients that actors have computed."""
    learned = []
    for config, worker in both(configure, precision, overrides):
        with OneDevice():
            learns, batch = make_learner(config, worker.data.shape, 10), worker.roll_out(Ticket(0, 0, 0))
            computed = None if learns.statistics else worker.differentiate(Ticket(0, 1, 0))
        with OneDevice() as taking:
            learns.take([batch])
            if computed:
                learns.take([computed])
        with OneDevice() as finishing:
            metrics = learns.finish()
        with OneDevice():
            state = learns.state()
            learns.load_state(state)
        if config.device == "meta":
            assert not [event for event in taking.events if event in WAITS]
            losses = metrics.keys() - {"learner/gradient_norm", "learner/lr"}
            assert finishing.events.count("wait") == 1 + len(losses), "the norm of the gradient, and each loss"
            assert finishing.events.count("to host") == 1, "the weights"
        learned.append((metrics.keys(), computed and kinds(computed), kinds(state), learns.versions[1].shape))
    assert learned[0] == learned[1]


@every
def test_every_decoder_answers_on_the_device_and_waits_only_for_the_number_of_passes(
    overrides: list[str], precision: str, configure: Configure
) -> None:
    answers = []
    for config, worker in both(configure, precision, overrides):
        prompts = worker.data.read_split("test", 0, config.eval.size).prompts
        for name, family in families_of(config).items():
            decoder = family.make(family.parameter and family.parameter.default)
            with OneDevice() as log, actors.worker.autocast(config):
                generation = decoder.answer(worker.model, prompts, evaluation_rng(0, "test", name, 0))
            if config.device == "meta" and decoder.passes is not None:  # otherwise it asks which answers are complete
                log.check_that_no_step_waits()
            answers.append((name, kinds(generation)))
        with OneDevice():
            assert worker.evaluate("test", 0).keys() == worker.decoders.keys()
    assert answers[: len(answers) // 2] == answers[len(answers) // 2 :]

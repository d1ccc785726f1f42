"""An answer depends on weights, prompt and decoder only."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data.prepare import find_data
from data.tasks import task_of
from recor_dist.answers.solver import load_solver
from recor_dist.core.config import flatten, unflatten
from recor_dist.core.method_settings import MdmConfig
from recor_dist.core.setting import Mistake
from recor_dist.record.run_folder import RunFolder

METHODS = ["method=recor", "method=clm", "method=ar_gt", "method=mdm", "method=ao_arm"]


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_does_not_depend_on_the_rest_of_its_batch(method: str, trained: Callable[..., Path]) -> None:
    solver = load_solver(str(trained(method)))
    data = find_data(solver.config, task_of(solver.config))
    assert data is not None
    prompts = data.read_split("test", 0, 12).prompts
    for decoder in solver.decoders:
        together = solver.answer(prompts, decoder)
        backwards = solver.answer(prompts[::-1], decoder)
        np.testing.assert_array_equal(together.steps, backwards.steps[::-1])
        np.testing.assert_array_equal(together.responses, backwards.responses[::-1])
        parts = list(solver.answer_all(prompts, decoder, size=5))
        assert [len(part.responses) for part in parts] == [5, 5, 2]
        np.testing.assert_array_equal(together.steps, np.concatenate([part.steps for part in parts]))
        np.testing.assert_allclose(together.confidences, np.concatenate([p.confidences for p in parts]), rtol=1e-4)
    if method in ("method=mdm", "method=ao_arm"):
        first = solver.answer(prompts, next(iter(solver.decoders)))
        assert len(np.unique(first.steps, axis=0)) > 1, "random numbers depend on the prompt"


def test_the_headline_decoder_is_the_default_and_others_are_chosen_by_name(trained: Callable[..., Path]) -> None:
    solver = load_solver(str(trained("method=mdm")))
    assert solver.choose(None) == "adamdm_prob"
    assert solver.choose("mdm_T2") == "mdm_T2"
    with pytest.raises(Mistake, match=r"^decoder=adamdm_prop: this model has .*; did you mean adamdm_prob\?$"):
        solver.choose("adamdm_prop")


def test_a_configuration_is_read_back_from_the_folder_of_its_run(trained: Callable[..., Path]) -> None:
    about = RunFolder.open(str(trained("method=mdm"))).require_run()
    assert flatten(unflatten(about["settings"])) == about["settings"]
    about["settings"] |= {"gone.since": 1, "model.gone": 2}
    del about["settings"]["method.rewrite"]
    method = unflatten(about["settings"]).method
    assert isinstance(method, MdmConfig) and method.rewrite is False

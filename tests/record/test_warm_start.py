"""Runs that start from the weights of another model: where those may lie, what is taken, and what resuming needs."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from data.prepare import open_data
from data.tasks import task_of
from learner.learner import initial_state
from recor_dist.core.config import Config
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.export import export
from recor_dist.methods import lay_out
from recor_dist.model.transformer import Model
from recor_dist.packaged import save_model
from recor_dist.record.checkpoint import load_model, sha256_of
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.warm_start import first_state, read_source, resolve_init
from tests.engine.test_loop import run_until_killed

Configure = Callable[..., Config]
Trained = Callable[..., Path]
AO_ARM = ("method=ao_arm",)
SHORT = ("eval.every=0", "task.test_rows=30")


def sha_of(out: Path) -> str:
    return json.loads((out / "result.json").read_text())["weights_sha256"]


def weights_of(out: Path) -> dict[str, np.ndarray]:
    model, _ = load_model(str(out))
    return model.named_weights(model.weights())


def start(config: Config) -> tuple[Model, dict[str, np.ndarray]]:
    """The model of a run, and v_0 by name."""
    model = lay_out(config, open_data(config, task_of(config)).shape)
    resolve_init(config, model)
    return model, model.named_weights(first_state(config, model).versions[0])


def test_every_place_gives_the_weights_that_the_run_ended_with(trained: Trained, tmp_path: Path) -> None:
    out = trained()
    checkpoint = RunFolder.open(str(out)).place("checkpoints", "step-00000018")
    save_model(str(out), f"{tmp_path}/model")
    places = [out, f"file://{out}", checkpoint, f"{checkpoint}/model.safetensors", f"{tmp_path}/model"]
    for place in map(str, places):
        source = read_source(place)
        assert sha256_of(source.named) == sha_of(out), place
        assert place.endswith(".safetensors") or source.settings["model.heads"] == 2


def test_the_first_state_is_the_source_and_its_sha256_is_part_of_the_identity(
    trained: Trained, config_in: Configure
) -> None:
    source, plain = trained(), config_in()
    config = config_in(f"init={source}", "seed=5")
    model, weights = start(config)
    for name, value in weights_of(source).items():
        np.testing.assert_array_equal(weights[name], value)
    state = first_state(config, model)
    assert not state.exp_avg.any() and not state.exp_avg_sq.any(), "the optimizer starts anew"
    assert config.init_sha256 == sha_of(source)
    warm, cold = train(config_in(f"init={source}", *SHORT)), train(config_in(*SHORT, f"out={plain.out}-cold"))
    assert warm["weights_sha256"] != cold["weights_sha256"]
    identity = RunFolder.open(str(plain.out)).require_run()["identity"]
    assert identity["init_sha256"] == sha_of(source) and "init" not in identity
    assert "init_sha256" not in RunFolder.open(f"{plain.out}-cold").require_run()["identity"]


def test_order_queries_that_the_source_lacks_are_initialized_as_usual_and_named(
    trained: Trained, config_in: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    source = trained(*AO_ARM)
    config = config_in(f"init={source}", "method.order_queries=2", "seed=5")
    with caplog.at_level(logging.INFO):
        model, weights = start(config)
    named = "order_query, order_head.weight, order_head.bias"
    assert f"sha256 {sha_of(source)}; not from there, but initialized as usual: {named}" in caplog.text
    usual = model.named_weights(initial_state(model, 5).versions[0])
    theirs = weights_of(source)
    for name, value in weights.items():
        np.testing.assert_array_equal(value, usual[name] if name in named.split(", ") else theirs[name])
    assert not (weights["wte.weight"] == usual["wte.weight"]).any()


def test_a_run_is_resumed_without_its_source(
    trained: Trained, config_in: Configure, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ReCOR from AO-ARM, killed before its first regular checkpoint; meanwhile the source has disappeared."""
    source = tmp_path / "source"
    shutil.copytree(trained(*AO_ARM), source)
    overrides = [f"init={source}", "checkpoint.every=8", *SHORT]
    whole = train(config_in(*overrides, f"out={tmp_path}/whole"))
    run_until_killed("step:5", ["scale=smoke", f"data.dir={tmp_path}/shards", f"out={tmp_path}/out", *overrides])
    shutil.rmtree(source)
    with caplog.at_level(logging.WARNING):
        resumed = train(config_in(*overrides))
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["test"] == whole["test"]
    assert not caplog.text
    with pytest.raises(Mistake, match=rf"^init={source}: holds no weights; give the folder of a run"):
        train(config_in(*overrides, f"out={tmp_path}/another"))


def test_another_source_is_another_run(trained: Trained, config_in: Configure, tmp_path: Path) -> None:
    first, second = trained(), trained(*AO_ARM)
    train(config_in(f"init={first}", *SHORT))
    with pytest.raises(
        Mistake, match=rf"init_sha256 \(was {sha_of(first)}, now {sha_of(second)}\); choose another out$"
    ):
        train(config_in(f"init={second}", *SHORT))
    with pytest.raises(Mistake, match=r"init_sha256 \(was \w{64}, now absent\)"):
        train(config_in(*SHORT))
    shutil.copytree(first, tmp_path / "copy")
    assert train(config_in(f"init={tmp_path}/copy", *SHORT))["weights_sha256"], "where the weights lie does not matter"


def test_weights_that_are_not_those_that_were_asked_for_are_refused(
    trained: Trained, config_in: Configure, tmp_path: Path
) -> None:
    source, wrong = trained(), "0" * 64
    with pytest.raises(Mistake, match=rf"^init={source}: its weights have sha256 {sha_of(source)}, not .*={wrong}; "):
        train(config_in(f"init={source}", f"init_sha256={wrong}"))
    with pytest.raises(Mistake, match=rf"^init_sha256={wrong}: says what `init` holds, but not where it is; add init="):
        train(config_in(f"init_sha256={wrong}", f"out={tmp_path}/other"))


@pytest.mark.parametrize(
    ("ours", "why"),
    [
        (["model.width=32"], r"token_query is 16 there and 32 here; start from a model of the same shape"),
        (["task.length=5"], r"wpe.weight is 9 x 16 there and 11 x 16 here"),
        (["model.layers=3"], r"blocks.2.ln_1.weight is absent there and 16 here"),
        (["model.layers=1"], r"blocks.1.attn.c_attn.bias is 48 there and absent here"),
        (["model.heads=4"], r"was trained with model.heads=2, and here it is 4; set model.heads=2"),
        (["model.loops=2"], r"was trained with model.loops=1, and here it is 2; set model.loops=1"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_another_shape_is_refused_with_the_first_tensor_that_differs(
    ours: list[str], why: str, trained: Trained, config_in: Configure
) -> None:
    source = trained()
    with pytest.raises(Mistake, match=f"^init={source}: {why}"):
        start(config_in(f"init={source}", *ours))


def test_a_refused_source_leaves_no_run_behind(trained: Trained, config_in: Configure) -> None:
    with pytest.raises(Mistake, match=r"wpe\.weight is 9 x 16 there and 11 x 16 here"):
        train(config_in(f"init={trained()}", "task.length=5", *SHORT))
    assert train(config_in(f"init={trained()}", *SHORT))["weights_sha256"], "the same out is free"


def test_an_exported_model_says_what_its_shapes_do_not(trained: Trained, config_in: Configure, tmp_path: Path) -> None:
    source, folder = trained(), tmp_path / "exported"
    export(str(source), str(folder))
    _, weights = start(config_in(f"init={folder}"))
    assert sha256_of(weights) == sha_of(source)
    with pytest.raises(Mistake, match=f"^init={folder}: was trained with model.heads=2, and here it is 4"):
        start(config_in(f"init={folder}", "model.heads=4"))
    about = json.loads((folder / "config.json").read_text())
    del about["settings"]["model.loops"]  # as if the setting were newer than the export
    (folder / "config.json").write_text(json.dumps(about))
    start(config_in(f"init={folder}"))
    with pytest.raises(Mistake, match=r"was trained with model\.loops=1, and here it is 2"):
        start(config_in(f"init={folder}", "model.loops=2"))


def test_what_holds_no_weights_is_refused_in_one_line(tmp_path: Path, config_in: Configure) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    safetensors.numpy.save_file({"x": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    for name, why in {
        "empty": "holds no weights; give the folder of a run",
        "nowhere": "holds no weights; give the folder of a run",
        "nowhere.safetensors": "does not exist; give the folder of a run",
        "torn.safetensors": "cannot be read as safetensors",
        "other.safetensors": "token_query is absent there and 16 here",
    }.items():
        with pytest.raises(Mistake, match=rf"^init={tmp_path}/{name}: {why}.*$") as refused:
            start(config_in(f"init={tmp_path}/{name}"))
        assert "\n" not in str(refused.value)

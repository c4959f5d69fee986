"""Settings are validated when they are made, whether from Python or from the command line's texts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from workbench.config import PRESETS, ModelConfig, TrainConfig, model_config, override, preset
from workbench.errors import WorkbenchError


def test_d_head_follows_from_the_number_of_heads() -> None:
    assert model_config({"d_model": 96, "n_heads": "6"}, d_vocab=5, n_ctx=4).d_head == 16
    assert model_config({"n_heads": 3, "d_head": 10}, d_vocab=5, n_ctx=4).d_head == 10


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(WorkbenchError, match=r"n_heads does not divide .*: expected a divisor of 64, got 3"):
        ModelConfig(d_vocab=5, n_ctx=4, n_heads=3)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"n_layers": 0}, "model.n_layers"),
        ({"d_mlp": -1}, "model.d_mlp"),
        ({"n_heads": "two"}, "a whole number, got 'two'"),
        ({"n_heads": 2.5}, "model.n_heads"),
        ({"n_heads": True}, "model.n_heads"),
        ({"positions": "absolute"}, "learned or sinusoidal or rotary or alibi or none, got 'absolute'"),
        ({"scale_scores": "perhaps"}, "true or false"),
        ({"d_head": 7}, "an even number"),
        ({"positions": "sinusoidal", "d_model": 9, "n_heads": 3}, "an even number"),
        ({"d_vocab": 7}, "Set task.d_vocab instead"),
        ({"n_head": 2}, "Did you mean n_heads"),
    ],
)
def test_impossible_models_are_one_clear_error(options: dict[str, Any], names: str) -> None:
    with pytest.raises(WorkbenchError) as error:
        model_config(options, d_vocab=5, n_ctx=4)
    assert names in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"batch_size": 0},
        {"warmup_steps": -1},
        {"lr": 0},
        {"lr": "nan"},
        {"grad_clip": "inf"},
        {"weight_decay": -0.1},
        {"head_sparsity": "-1"},
        {"precision": "float16"},
    ],
)
def test_impossible_training_names_the_field(options: dict[str, Any]) -> None:
    with pytest.raises(WorkbenchError, match=f"train.{next(iter(options))} cannot be used"):
        override(TrainConfig(), options, "train")


def test_texts_become_typed_fields() -> None:
    made = override(TrainConfig(), {"steps": "7", "lr": "1e-2", "precision": "bfloat16"}, "train")
    assert (made.steps, made.lr, made.precision) == (7, 0.01, "bfloat16")
    scores = [model_config({"scale_scores": text}, d_vocab=5, n_ctx=4).scale_scores for text in ("True", "0", "no")]
    assert scores == [True, False, False]


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(WorkbenchError, match=r"unknown train option 'step'\. Did you mean steps"):
        override(TrainConfig(), {"step": "7"}, "train")


def test_a_field_without_a_text_form_is_a_fault_of_its_author() -> None:
    @dataclasses.dataclass(frozen=True)
    class Odd:
        parts: tuple[int, ...] = ()

    with pytest.raises(TypeError, match="no text form"):
        override(Odd(), {"parts": "1"}, "task")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_valid_settings(name: str) -> None:
    chosen = preset(name)
    assert chosen.about
    model = model_config(chosen.model, d_vocab=65, n_ctx=48)
    assert dataclasses.replace(model) == model
    override(TrainConfig(), chosen.train, "train")


def test_presets_as_documented() -> None:
    shape = model_config(preset("default").model, d_vocab=65, n_ctx=48)
    assert (shape.n_layers, shape.n_heads, shape.d_model, shape.d_head, shape.d_mlp) == (2, 4, 64, 32, 0)
    assert (shape.positions, shape.norm) == ("rotary", "pre")
    assert preset("default").train["head_sparsity"] > 0
    assert "head_sparsity" not in preset("shared").train
    assert preset("shared").model == preset("default").model
    assert preset("teaching").model["n_heads"] == 1
    assert preset("winograd").model == preset("shared").model
    assert preset("identifiers").model == {**preset("shared").model, "positions": "alibi"}


def test_unknown_preset() -> None:
    with pytest.raises(WorkbenchError, match=r"unknown preset 'defualt'\. Did you mean default"):
        preset("defualt")

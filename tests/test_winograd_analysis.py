"""The Winograd analysis on models whose way of deciding is planted by hand, and the arithmetic of its interventions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from analyses._winograd_claims import IDS, answer, claims, claims_of, needed_at, over_seeds, study_of
from analyses._winograd_figures import attention_findings
from analyses._winograd_sides import (
    changed,
    cue_value_edits,
    cue_weight_edits,
    frame_means,
    look,
    unfit,
    without_heads,
)
from analyses.winograd import ANALYSIS
from tests.tiny_task import Successor
from workbench.analysis import Budget
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.findings import Claim, Notice, Table
from workbench.findings_json import from_json, to_json
from workbench.hooks import capture, intervene
from workbench.model.transformer import Transformer
from workbench.registry import load_task
from workbench.rng import stream
from workbench.subject import Subject

TASK = load_task("winograd")
WORDS = len(TASK.vocabulary)
FIRST, SECOND, QUERY = 1, 6, 14
CUES = {w: points for points in ("first", "second") for w in getattr(TASK.SITUATIONS[0], points)}
NOUNS = range(1, 17)
BUDGET = Budget(samples=64, selection_samples=32)
ENOUGH = Budget(samples=400, selection_samples=32)
"""With fewer sentences no row can be told to differ by less than .01."""
SHARP, GAIN = 15.0, 4.0


def blank(n_layers: int, n_heads: int = 2) -> Transformer:
    """Residual stream: the word, one-hot; the place, one-hot; the prediction. No head does anything yet."""
    width = 2 * WORDS + TASK.n_ctx
    config = ModelConfig(
        d_vocab=WORDS, n_ctx=TASK.n_ctx, n_layers=n_layers, n_heads=n_heads, d_model=width, d_head=width,
        positions="learned", norm="none", scale_scores=False,
    )  # fmt: skip
    model = Transformer(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.embed.W_E[:, :WORDS] = torch.eye(WORDS)
        model.pos_embed.W_pos[:, WORDS : WORDS + TASK.n_ctx] = torch.eye(TASK.n_ctx)
        model.unembed.W_U[WORDS + TASK.n_ctx :] = torch.eye(WORDS)
    return model


def head(model: Transformer, layer: int, index: int, place: int, gain: float, soaked_by: str = "") -> None:
    """A head that looks from the deciding query at one place and says the noun that stands there, ``gain`` times.

    Cues that point to the noun ``soaked_by`` score twice as much as that place, and say nothing.
    """
    attn = model.blocks[layer].attn
    with torch.no_grad():
        attn.W_Q[index, WORDS + QUERY, 0] = 1.0
        attn.W_K[index, WORDS + place, 0] = SHARP
        for word, points in CUES.items():
            if points == soaked_by:
                attn.W_K[index, TASK.vocabulary.encode([word])[0], 0] = 2 * SHARP
        for noun in NOUNS:
            attn.W_V[index, noun, noun] = 1.0
            attn.W_O[index, noun, WORDS + TASK.n_ctx + noun] = gain


def soaking(layers: tuple[int, int] = (0, 0)) -> Subject:
    """The first noun is always brought, the second twice as loudly unless a cue soaks up the head's attention."""
    model = blank(max(layers) + 1)
    head(model, layers[0], 0, FIRST, GAIN)
    head(model, layers[1], 1, SECOND, 2 * GAIN, soaked_by="first")
    return Subject(model, TASK.vocabulary, TASK)


def reading() -> Subject:
    """The first layer reads which noun the cue points to, with the same weight for every cue; the second fetches it."""
    model = blank(2)
    says = {"first": WORDS + TASK.n_ctx - 2, "second": WORDS + TASK.n_ctx - 1}  # places that no query sees
    head(model, 1, 0, FIRST, GAIN)
    reader, fetcher = model.blocks[0].attn, model.blocks[1].attn
    with torch.no_grad():
        reader.W_Q[0, WORDS + QUERY, 0] = 1.0
        for word, points in CUES.items():
            reader.W_K[0, TASK.vocabulary.encode([word])[0], 0] = SHARP
            reader.W_V[0, TASK.vocabulary.encode([word])[0], says[points]] = 1.0
        reader.W_O[0].copy_(torch.eye(model.config.d_model))
        fetcher.W_Q.zero_()
        fetcher.W_K.zero_()
        for dim, (points, place) in enumerate((("first", FIRST), ("second", SECOND))):
            fetcher.W_Q[0, says[points], dim] = 1.0
            fetcher.W_K[0, WORDS + place, dim] = SHARP
    return Subject(model, TASK.vocabulary, TASK)


def by_name(made) -> dict[str, Claim]:
    return {c.id.removeprefix("winograd."): c for c in made}


@pytest.fixture(scope="module")
def one_layer():
    return study_of(soaking(), ENOUGH, lambda stage: None)


@pytest.fixture(scope="module")
def two_layers():
    return study_of(soaking((0, 1)), ENOUGH, lambda stage: None)


def test_soaking_in_one_layer_is_recognised(one_layer):
    made = by_name(claims(one_layer))
    assert list(made) == list(IDS)
    assert made["accuracy"].value == 1
    assert made["scores_equal_on_unchanged"].verdict == "supported"
    assert made["row_cannot_differ"].verdict == "contradicted"
    assert made["row_cannot_differ"].heads == ("L0.H1",)
    assert made["row_cannot_differ"].value == pytest.approx(1, abs=1e-4)
    assert made["two_hops"].verdict == "not_applicable"
    assert made["two_hops"].reason == "the model has one layer"
    assert made["cue_soaks_softmax"].verdict == "supported"
    assert made["cue_soaks_softmax"].value == pytest.approx(1, abs=1e-4)


def test_the_first_layers_scores_and_ratios_are_equal(one_layer):
    first = one_layer.first
    assert first.score_gap.max() == 0
    assert np.nanmax(first.ratio_gap) < 1e-5
    assert first.row_gap[:, 0].max() == 0
    weight = np.where(one_layer.side.role == 0, first.cue_weight[:, 1], first.twin_weight[:, 1])
    assert weight == pytest.approx(1, abs=1e-4)


def test_two_hops_and_soaking_higher_up_are_recognised(two_layers):
    made = by_name(claims(two_layers))
    assert made["two_hops"].verdict == "supported"
    assert made["two_hops"].heads == ("L0.H0", "L0.H1")
    assert two_layers.role == 0
    assert [c.value for c in two_layers.crossed] == pytest.approx([0, 0, 1], abs=1e-4)
    assert made["row_cannot_differ"].verdict == "supported"
    assert made["cue_soaks_softmax"].verdict == "supported"
    of_first = two_layers.side.role == 0
    assert two_layers.lower["answer"].accuracy[of_first].mean() < 0.5
    assert two_layers.lower["answer"].accuracy[~of_first].mean() == 1
    assert needed_at(two_layers) == ["the deciding position"]
    assert made["relay"].verdict == "contradicted"
    assert two_layers.relay is not None
    assert all(two_layers.lower[place].accuracy.mean() == 1 for place in ("before the cue", "cue", "between"))


def test_a_relay_by_another_word_is_two_hops_as_well(two_layers):
    """Where replacing the lower layer at the cue alone takes away the sentences of one noun, the answer says so."""
    hop = two_layers.lower["cue"]
    lost = np.where(two_layers.side.role == 1, 0.0, 1.0)
    study = replace(two_layers, relay=("cue", 1), lower={**two_layers.lower, "cue": replace(hop, accuracy=lost)})
    made = by_name(claims(study))
    assert made["relay"].verdict == "supported"
    assert made["relay"].value == 0
    assert "\u2039cue\u203a" in made["relay"].statement
    assert "But there are two hops" in answer(study, claims(study)).text


def test_both_steps_in_the_lower_layer_contradict_two_hops():
    subject = soaking()
    model = blank(2)
    with torch.no_grad():
        for name, weight in model.blocks[0].named_parameters():
            weight.copy_(dict(subject.model.blocks[0].named_parameters())[name])
    made = by_name(claims_of(Subject(model, TASK.vocabulary, TASK), BUDGET))
    assert made["two_hops"].verdict == "contradicted"
    assert made["two_hops"].unit == "share of the cue's effect"
    assert made["two_hops"].value == pytest.approx(1, abs=1e-4)
    assert made["cue_soaks_softmax"].verdict == "supported"


def test_both_steps_in_the_later_layer_contradict_two_hops():
    model = blank(2)
    head(model, 1, 0, FIRST, GAIN)
    head(model, 1, 1, SECOND, 2 * GAIN, soaked_by="first")
    two = by_name(claims_of(Subject(model, TASK.vocabulary, TASK), BUDGET))["two_hops"]
    assert two.verdict == "contradicted"
    assert (two.unit, two.value) == ("accuracy", 1)


def test_a_cue_that_is_read_contradicts_soaking():
    study = study_of(reading(), BUDGET, lambda stage: None)
    made = by_name(claims(study))
    assert made["accuracy"].value == 1
    assert made["row_cannot_differ"].value == pytest.approx(0, abs=1e-6)
    assert made["cue_soaks_softmax"].verdict == "contradicted"
    assert made["cue_soaks_softmax"].value == pytest.approx(0, abs=1e-4)
    moved = {(hop.name, hop.layers): hop.moved.value for hop in study.acts}
    assert moved["value", "L0"] == pytest.approx(1, abs=1e-4)
    assert moved["value", "L1"] == pytest.approx(0, abs=1e-4)
    assert made["two_hops"].verdict == "contradicted"
    assert (made["two_hops"].unit, made["two_hops"].value) == ("share of the cue's effect", pytest.approx(1, abs=1e-4))


def random_side(n_layers: int = 2, positions: str = "rotary", n: int = 12):
    config = ModelConfig(d_vocab=WORDS, n_ctx=TASK.n_ctx, n_layers=n_layers, n_heads=2, d_model=16, positions=positions)
    model = Transformer(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=stream(0, "analysis", name))
    batch = TASK.sample(n, "test", stream(1, "analysis"))
    return look(model, TASK, batch, TASK.counterfactual(batch))


def test_weight_and_value_of_the_cue_together_are_the_twin():
    """In one layer the cue can act in no other way."""
    side = random_side(n_layers=1)
    at = (torch.arange(12), side.query)
    logits = changed(side, [*cue_weight_edits(side, (0,)), *cue_value_edits(side, (0,))])
    assert torch.allclose(logits[at], side.other.logits[at], atol=1e-5)
    assert not torch.allclose(side.clean.logits[at], side.other.logits[at], atol=1e-3)
    assert side.moved(logits).value == pytest.approx(1, abs=1e-4)


def test_the_cues_weight_becomes_the_twins_and_the_rest_keeps_its_proportions():
    side = random_side()
    rows, theirs = (side.rows("pattern", twin)[:, 0] for twin in (False, True))
    name = "blocks.0.attn.hook_pattern"
    for removed in (False, True):
        edits = cue_weight_edits(side, (0,), removed=removed)
        with torch.no_grad(), intervene(side.model, edits), capture(side.model, [name]) as kept:
            side.model(side.batch.tokens, side.batch.mask, path="explicit")
        n = torch.arange(12)
        new = kept[name][n, :, side.query]
        weight = new[n, :, side.cue]
        wanted = torch.zeros_like(weight) if removed else theirs[n, :, side.cue]
        assert torch.allclose(weight, wanted, atol=1e-6)
        own = rows.clone()
        own[n, :, side.cue] = 0
        rest = new.clone()
        rest[n, :, side.cue] = 0
        assert torch.allclose(rest / rest.sum(-1, keepdim=True), own / own.sum(-1, keepdim=True), atol=1e-6)
        others = torch.arange(TASK.n_ctx) != QUERY
        clean = side.clean.activations[name]
        assert torch.equal(kept[name][:, :, others], clean[:, :, others])


def test_means_by_template_by_hand():
    task = load_task("winograd", {"situations": "all"})
    config = ModelConfig(d_vocab=len(task.vocabulary), n_ctx=task.n_ctx, n_layers=2, n_heads=2, d_model=16)
    model = Transformer(config)

    def side(n: int, name: str):
        batch = task.sample(n, "test", stream(0, name))
        return look(model, task, batch, task.counterfactual(batch))

    reference, here = side(120, "reference"), side(10, "here")
    means = frame_means(reference, here)
    z = reference.clean.activations["blocks.1.attn.hook_z"]
    for i, frame in enumerate(here.frames):
        members = [j for j, other in enumerate(reference.frames) if other == frame]
        assert torch.allclose(means[1][i], z[members].mean(dim=0), atol=1e-6)
    with pytest.raises(WorkbenchError, match="some template"):
        frame_means(side(1, "one"), here)


def test_heads_are_replaced_where_asked_and_nowhere_else():
    side = random_side()
    means = frame_means(side, side)
    logits = without_heads(side, (0,), side.places["between"], means)
    before = torch.arange(TASK.n_ctx) <= int(side.cue[0])
    assert torch.equal(logits[:, before], side.clean.logits[:, before])
    assert not torch.equal(logits, side.clean.logits)
    own = [side.clean.activations[f"blocks.{layer}.attn.hook_z"] for layer in range(2)]
    assert torch.equal(without_heads(side, (0, 1), side.places["answer"], own), side.clean.logits)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, {"n_layers": 1}),
        ({"situations": "all"}, {"n_layers": 3, "d_mlp": 8, "norm": "post"}),
        ({"situations": "all", "held_out": "lifting", "loss": "every_word"}, {"n_layers": 2, "attention": "uniform"}),
    ],
)
def test_findings_of_any_model_survive_json(options, shape):
    task = load_task("winograd", options)
    config = ModelConfig(d_vocab=len(task.vocabulary), n_ctx=task.n_ctx, n_heads=2, d_model=16, **shape)
    found = ANALYSIS.run(Subject(Transformer(config), task.vocabulary, task), Budget(16, 16), lambda stage: None)
    ids = [f.id for f in found]
    assert len(set(ids)) == len(ids)
    for finding in found:
        data = json.loads(json.dumps(to_json(finding), allow_nan=False))
        assert to_json(from_json(data)) == data
    made = by_name([f for f in found if isinstance(f, Claim)])
    assert made["two_hops"].verdict == made["cue_soaks_softmax"].verdict == "not_applicable"
    assert made["scores_equal_on_unchanged"].value == 1
    if "attention" in shape:
        assert made["row_cannot_differ"].value == 0
    assert "winograd.source" not in ids or options == {}


def test_a_task_without_cue_and_candidates_is_left_alone():
    task = Successor()
    batch = task.sample(8, "test", stream(0, "x"))
    assert unfit(task, batch, None) == "the task has no twin sentences"
    assert "which position holds the cue" in unfit(task, batch, batch)
    found = ANALYSIS.run(Subject(blank_of(task), task.vocabulary, task), BUDGET, lambda stage: None)
    assert [type(f) for f in found] == [Notice]
    with pytest.raises(WorkbenchError, match="does not apply"):
        claims_of(Subject(blank_of(task), task.vocabulary, task), BUDGET)


def blank_of(task) -> Transformer:
    return Transformer(ModelConfig(d_vocab=len(task.vocabulary), n_ctx=task.n_ctx, n_layers=1, n_heads=1, d_model=4))


def test_the_sources_numbers_stand_beside_those_of_its_own_sentences_only(one_layer):
    table = next(f for f in attention_findings(one_layer) if f.id == "winograd.source")
    assert len(table.rows) == 14
    assert table.rows[0]["word"] == "‹first›"
    assert (table.rows[0]["source"], table.rows[0]["h0"]) == (0.70, pytest.approx(1, abs=1e-4))
    assert table.rows[0]["ours"] == pytest.approx((table.rows[0]["h0"] + table.rows[0]["h1"]) / 2)
    assert {row["ours"] for row in table.rows if row["block"] == 2} == {None}


def test_the_answer_follows_the_verdicts(one_layer, two_layers):
    one, two = (answer(study, claims(study)).text for study in (one_layer, two_layers))
    assert "right in 100.0 %" in one
    assert "**L0.H1** moves 1.00 of its weight" in one
    assert "hops" not in one
    assert "1.00 of the cue's effect reaches the deciding position in **L1**" in two
    assert "Two hops by way of that position are borne out" in two
    assert "needed at: the deciding position." in two
    assert one.endswith("The cue decides by the attention that it soaks up.")


def test_shares_over_seeds_by_hand(one_layer):
    base = claims(one_layer)
    odd = [replace(c, verdict="contradicted", value=0.5) if c.id == "winograd.cue_soaks_softmax" else c for c in base]
    table = over_seeds({0: base, 1: base, 2: odd})
    assert isinstance(table, Table)
    rows = {row["claim"].removeprefix("winograd."): row for row in table.rows}
    assert list(rows) == list(IDS)
    soaks = rows["cue_soaks_softmax"]
    assert (soaks["supported"], soaks["contradicted"], soaks["inconclusive"], soaks["applicable"]) == (2, 1, 0, 3)
    assert soaks["share"] == pytest.approx(2 / 3)
    assert soaks["low"] < 2 / 3 < soaks["high"]
    assert soaks["values"] == "1.00, 1.00, 0.50"
    assert (rows["two_hops"]["applicable"], rows["two_hops"]["share"]) == (0, None)

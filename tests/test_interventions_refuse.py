"""Bad input to every kind of intervention: one clear line, on both ways through the model, and no hook is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests import small_models as small
from tests.drawn_interventions import N, batch_of
from tests.small_models import hooks_left
from workbench.ablation import Intervention, KeepOnly, Mean, Resample, Zero
from workbench.components import Layer, Mlp
from workbench.cut_path import CutPath
from workbench.errors import WorkbenchError
from workbench.measure import measure, run
from workbench.patching import Point, patch, source_cache
from workbench.reference import Pairing, ReferenceSet, build_reference
from workbench.task import IGNORE, Batch

S = small.subject({"norm": "pre", "positions": "learned", "d_mlp": 12}, padded=False)
BARE = small.subject({"norm": "none", "positions": "learned", "d_mlp": 0}, padded=False)
BATCH = batch_of(S)
REFERENCE = build_reference(S, size=8)
PAIRING = Pairing(N)
WAYS: dict[str, Callable[..., Intervention]] = {
    "zero": Zero,
    "mean": lambda parts, **options: Mean(parts, REFERENCE, **options),
    "resample": lambda parts, **options: Resample(parts, PAIRING, **options),
    "joint": lambda parts, **options: Zero("L1.H1", **options) + Zero(parts, **options),
    "keep": lambda parts: KeepOnly(parts, Zero(()), among="parts"),
}
PLACED = ("zero", "mean", "resample", "joint")


def refused(value: Intervention, message: str, *, subject=S, batch: Batch = BATCH) -> None:
    clean = run(subject.model, batch).logits
    for way in (lambda: run(subject.model, batch, value), lambda: measure(subject, batch, [Zero("L0.H0"), value])):
        with pytest.raises(WorkbenchError, match=message) as error:
            way()
        assert "\n" not in str(error.value)
        assert hooks_left(subject.model) == 0
    assert torch.equal(run(subject.model, batch).logits, clean)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("L7.H9", r"no head L7\.H9: expected L0 to L1 and H0 to H1 \(2 layers x 2 heads\), got L7\.H9"),
        ("L0.H2", r"no head L0\.H2: expected L0 to L1 and H0 to H1"),
        ("L2.mlp", r"no part L2\.mlp: expected layers L0 to L1, got L2\.mlp"),
        ("L2", r"no part L2: expected layers L0 to L1, got L2"),
        (Layer(-1), r"no part L-1: expected layers L0 to L1"),
    ],
)
def test_parts_that_do_not_exist_say_what_does(way: str, part: str, message: str) -> None:
    refused(WAYS[way](part), message)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_without_mlps_says_so(way: str) -> None:
    value = WAYS[way]("L0.mlp")
    with pytest.raises(WorkbenchError, match=r"no part L0\.mlp: expected heads: the model has no MLPs, got L0\.mlp"):
        value.targets(BARE.config)


@pytest.mark.parametrize("text", ["", "head 3", "L1.H", "mlp", "L0.mlp.1", "1"])
def test_names_that_cannot_be_read(text: str) -> None:
    for kind in (Zero, WAYS["mean"], WAYS["resample"], WAYS["keep"]):
        with pytest.raises(WorkbenchError, match="a part's name cannot be read: expected a name like"):
            kind([text])
    with pytest.raises(WorkbenchError, match="a head's name cannot be read"):
        CutPath("K", [text], "L1.H0", REFERENCE)


@pytest.mark.parametrize("way", PLACED)
@pytest.mark.parametrize(
    ("at", "message"),
    [
        (6, "a position does not exist: expected 0 to 5, got 6"),
        (-1, "a position does not exist: expected 0 to 5, got -1"),
        ("her", "unknown position 'her'. Did you mean here?"),
        (("here", 9), "expected 0 to 5, got 9"),
    ],
)
def test_places_that_do_not_exist_say_what_does(way: str, at: object, message: str) -> None:
    refused(WAYS[way]("L0.H0", at=at), message)


SHORT = Batch(*(t[:, :4] for t in (BATCH.tokens, BATCH.mask, BATCH.targets, BATCH.scored)))
OTHER_SHAPE = replace(REFERENCE, mean_z=tuple(m[:, :1] for m in REFERENCE.mean_z))
UNFILLED = replace(REFERENCE, filled=torch.arange(6) < 3)
NO_MLPS = replace(REFERENCE, mean_mlp=())
NARROW = replace(REFERENCE, mean_mlp=tuple(m[:, :3] for m in REFERENCE.mean_mlp))


def over(reference: ReferenceSet) -> list[Intervention]:
    """Every kind that takes a reference set, on heads."""
    return [
        Mean("L0.H0", reference),
        Mean("L0.H0", reference, at=0, frozen_patterns=True),
        KeepOnly("L0.H0", Mean((), reference)),
        CutPath("V", "L0.H0", "L1.H0", reference),
        Zero("L1.H0") + Mean("L0.H0", reference),
    ]


@pytest.mark.parametrize("index", range(5))
def test_a_reference_set_that_does_not_fit_says_how(index: int) -> None:
    refused(over(OTHER_SHAPE)[index], r"a reference set that does not fit.*\(2, 2, 4\), got \(2, 1, 4\)")
    refused(over(UNFILLED)[index], r"a reference set that does not fit.*none at position 3")
    refused(over(REFERENCE)[index], "expected sequences of 6 positions, got 4", batch=SHORT)


@pytest.mark.parametrize(("reference", "got"), [(NO_MLPS, "got none"), (NARROW, r"got \[\(3,\), \(3,\)\]")])
def test_a_reference_set_without_the_mlps_fits_heads_only(reference: ReferenceSet, got: str) -> None:
    for value in (Mean("L0.mlp", reference), KeepOnly("L0", Mean((), reference), among="parts"), Mean("L1", reference)):
        refused(value, f"a mean of 8 numbers for each of 2 MLPs, {got}")
    for value in over(reference):
        run(S.model, BATCH, value)


def test_a_pairing_that_does_not_fit_says_how() -> None:
    for value in (
        Resample("L0.mlp", Pairing(N + 1)),
        Resample("L0.H0", Pairing(N + 1), at="here", frozen_norm=True),
        KeepOnly("L0.H0", Resample((), Pairing(N + 1))),
        Zero("L1") + Resample("L0", Pairing(N + 1)),
    ):
        refused(value, "a pairing does not fit the batch: expected 4 sequences, got 5")
    padded = small.subject({"norm": "pre", "positions": "learned", "d_mlp": 12})
    batch = padded.sample(6, "test")
    for value in (Resample("L0", Pairing(6)), KeepOnly("L0.H0", Resample((), Pairing(6)))):
        refused(value, "paired with a shorter one", subject=padded, batch=batch)


def test_modes_and_paths_that_a_model_does_not_have() -> None:
    batch = BARE.sample(N, "test")
    for value in (Zero("L0", frozen_norm=True), KeepOnly("L0.H0", Zero(()), frozen_norm=True)):
        refused(value, r"cannot be frozen: expected a model with a final norm \(norm pre\), got norm none",
                subject=BARE, batch=batch)  # fmt: skip
    post = small.subject({"norm": "post", "positions": "learned", "d_mlp": 0}, padded=False)
    reference = build_reference(post, size=8)
    cut = CutPath("K", "L0.H0", "L1.H0", reference)
    for value in (cut, cut + Zero("L0.H1")):
        refused(value, "not applicable to a post-norm model", subject=post, batch=post.sample(N, "test"))
    with pytest.raises(WorkbenchError, match="of different modes cannot be joined"):
        Zero("L0.H0", frozen_patterns=True) + Zero("L0.H1")


def test_a_metric_without_its_labels_says_so() -> None:
    effect = measure(S, BATCH, [Zero("L0.H0")])[0]
    with pytest.raises(WorkbenchError, match="a logit difference needs its labels"):
        _ = effect.logit_difference_effect
    wrong = torch.where(BATCH.scored, 1, IGNORE)
    bare = replace(BATCH, targets=torch.full_like(BATCH.targets, IGNORE))
    for batch, incorrect, message in [
        (bare, None, "the targets leave a scored position without .* ids from 0 to 6, got -100"),
        (BATCH, torch.full_like(wrong, IGNORE), "the incorrect answers leave a scored position without an answer"),
        (BATCH, torch.full_like(wrong, small.D_VOCAB), "expected ids from 0 to 6, got 7"),
        (BATCH, wrong[:2], r"incorrect answers do not fit the batch: expected \(4, 6\), got \(2, 6\)"),
        (replace(BATCH, scored=BATCH.scored & False), None, "nothing is scored"),
    ]:
        for value in (Zero("L0.H0"), Zero("L0.H0", frozen_patterns=True)):
            with pytest.raises(WorkbenchError, match=message) as error:
                measure(S, batch, [value], incorrect=incorrect)
            assert "\n" not in str(error.value)


def test_twins_of_different_shapes_do_not_pair() -> None:
    for twin in (SHORT, BATCH[:3]):
        with pytest.raises(WorkbenchError, match=r"do not pair.*\(4, 6\)") as error:
            patch(S.model, BATCH, source_cache(S.model, twin), [Point(0, 0)])
        assert "\n" not in str(error.value)
    assert hooks_left(S.model) == 0


def test_an_input_that_the_model_refuses_leaves_nothing_either() -> None:
    long = replace(BATCH, tokens=BATCH.tokens.clone().index_fill_(1, torch.tensor([0]), 99))
    for value in (Zero("L0"), Mean("L0.mlp", REFERENCE), CutPath("K", "L0.H0", "L1.H0", REFERENCE)):
        for way in (lambda v: run(S.model, long, v), lambda v: measure(S, long, [v])):
            with pytest.raises(WorkbenchError, match="outside the vocabulary: expected 0 to 6, got 99"):
                way(value)
    assert hooks_left(S.model) == 0


def test_parts_print_as_they_are_read() -> None:
    assert str(Zero([Mlp(0), "L1.H0"])) == "the output of L0.mlp, L1.H0 replaced by zero"

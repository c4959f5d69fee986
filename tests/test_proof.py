"""The page's proof of itself: every identity with its badge, and no page where one fails."""

from __future__ import annotations

import dataclasses

import pytest

from tests import hand_models
from tests.small_models import SHAPES
from tests.small_models import subject as small_subject
from workbench import proof
from workbench.checks import TOLERANCES, Checks
from workbench.errors import WorkbenchError
from workbench.findings import Notice, Table

BROKEN = {"empty_is_clean": False, "patched_is_clean": False} | dict.fromkeys(TOLERANCES, 1.0)


def test_every_check_has_a_badge_and_a_row():
    assert set(proof.IDENTITIES) == {field.name for field in dataclasses.fields(Checks)}
    badges, table = proof.prove(small_subject(SHAPES[0]))
    assert isinstance(badges, Notice)
    assert badges.text.count("\u2713") == len(proof.IDENTITIES)
    assert isinstance(table, Table)
    assert [row["result"] for row in table.rows] == ["\u2713 holds"] * len(proof.IDENTITIES)
    assert {row["tolerance"] for row in table.rows} == {"bitwise", "1e-06", "2e-06", "1e-05"}


def test_a_post_norm_models_writes_are_not_a_sum():
    shape = next(shape for shape in SHAPES if shape["norm"] == "post")
    badges, table = proof.prove(small_subject(shape))
    assert badges.text.count("\u2713") == len(proof.IDENTITIES) - 1
    assert table.rows[-1]["result"] == "not applicable (post-norm)"


@pytest.mark.parametrize("name", BROKEN)
def test_an_identity_that_fails_is_an_error(name, monkeypatch):
    good = proof.self_checks
    monkeypatch.setattr(
        proof, "self_checks", lambda model, batch: dataclasses.replace(good(model, batch), **{name: BROKEN[name]})
    )
    from tasks.repeated_tokens import RepeatedTokens

    task = RepeatedTokens(n_ctx=32, d_vocab=25, period_min=6, period_max=14)
    with pytest.raises(WorkbenchError, match=f"self check failed: {name.replace('_', ' ')}"):
        proof.prove(hand_models.inert().subject(task))

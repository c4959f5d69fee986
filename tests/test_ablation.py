"""Interventions as values: they print, compare, hash, store, and name what they replace."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.small_models import subject
from workbench.ablation import KeepOnly, Mean, Resample, Zero
from workbench.components import Head, as_heads
from workbench.config import ModelConfig
from workbench.cut_path import CutPath
from workbench.errors import WorkbenchError
from workbench.interventions import from_json
from workbench.reference import Pairing, build_reference

REFERENCE = build_reference(subject({"norm": "pre", "positions": "learned"}), split="validation", size=16)
SAID = "mean over 16 validation sequences of random (seed 0), per position"
CONFIG = ModelConfig(7, 6, d_model=8)

every_kind = [
    Zero("L0.H1"),
    Zero("L0.H1", frozen_patterns=True),
    Mean(["L1.H0", "L0.H1"], REFERENCE),
    Resample("L0.H1", Pairing(8)),
    KeepOnly("L0.H1", Zero(())),
    KeepOnly("L0.H1", Mean((), REFERENCE), frozen_patterns=True),
    KeepOnly("L0.H1", Resample((), Pairing(8, 3))),
    CutPath("K", "L0.H0,L0.H1", "L1.H3", REFERENCE),
]


@settings(deadline=None)
@given(st.integers(2, 60), st.integers(0, 10**6))
def test_a_pairing_is_one_cycle_through_all(n, seed):
    pairing = Pairing(n, seed)
    assert sorted(pairing.donors) == list(range(n))
    seen, at = set(), 0
    while at not in seen:
        seen.add(at)
        at = pairing.donors[at]
    assert len(seen) == n
    assert pairing == Pairing(n, seed)
    assert len(pairing.hash) == 64


def test_pairings_differ_by_seed_and_need_two_sequences():
    assert Pairing(20, 0).hash != Pairing(20, 1).hash
    assert Pairing(20, 0) != Pairing(20, 1)
    with pytest.raises(WorkbenchError, match="at least 2 sequences, got 1"):
        Pairing(1)


def test_heads_are_read_from_names_sorted_without_repeats():
    assert Zero("L1.H0, L0.H1").parts == (Head(0, 1), Head(1, 0))
    assert Zero([Head(1, 0), "L1.H0"]) == Zero("L1.H0") == Zero(Head(1, 0))
    with pytest.raises(WorkbenchError, match="cannot be read"):
        Zero("head 3")


def test_values_compare_and_hash_by_everything_that_they_say():
    assert len(set(every_kind)) == len(every_kind)
    assert hash(Mean("L0.H1", REFERENCE)) == hash(Mean(("L0.H1",), REFERENCE))
    assert Zero("L0.H1") != Mean("L0.H1", REFERENCE)


@pytest.mark.parametrize("intervention", every_kind, ids=repr)
def test_every_kind_is_stored_as_json_and_read_back(intervention):
    stored = json.loads(json.dumps(intervention.to_json()))
    assert from_json(stored, {REFERENCE.hash: REFERENCE}) == intervention
    assert "mean_z" not in json.dumps(stored)


def test_semantics_say_what_replaces_what_over_which_reference():
    sentences = [str(i) for i in every_kind]
    assert sentences == [
        "z of L0.H1 replaced by zero",
        "z of L0.H1 replaced by zero, every pattern held at its clean value",
        f"z of L0.H1, L1.H0 replaced by its {SAID}",
        "z of L0.H1 replaced by that of another sequence (each of 8 sequences paired with another, pairing seed 0)",
        "z of every head but L0.H1 replaced by zero",
        f"z of every head but L0.H1 replaced by its {SAID}, every pattern held at its clean value",
        "z of every head but L0.H1 replaced by that of another sequence (each of 8 sequences paired with another, "
        "pairing seed 3)",
        "the keys of L1.H3 read a residual stream in which the writes of L0.H0, L0.H1 are replaced by their " + SAID,
    ]
    assert [i.semantics for i in every_kind] == sentences


def test_they_print_in_one_readable_line():
    assert repr(Zero("L0.H1,L1.H0")) == "Zero(L0.H1, L1.H0; zero)"
    assert repr(every_kind[-1]).startswith("CutPath(K: L0.H0, L0.H1 to L1.H3; ReferenceSet(mean over 16")
    assert "tensor" not in " ".join(map(repr, every_kind))


def test_targets_are_the_heads_really_replaced():
    assert Zero("L0.H1").targets(CONFIG) == (Head(0, 1),)
    rest = KeepOnly("L0.H1,L1.H2", Zero(())).targets(CONFIG)
    assert [str(h) for h in rest] == ["L0.H0", "L0.H2", "L0.H3", "L1.H0", "L1.H1", "L1.H3"]
    assert every_kind[-1].targets(CONFIG) == (Head(0, 0), Head(0, 1))


@pytest.mark.parametrize(
    "intervention",
    [
        Zero("L0.H4"),
        KeepOnly("L2.H0", Zero(())),
        CutPath("K", "L0.H0", "L1.H4", REFERENCE),
    ],
)
def test_a_head_that_does_not_exist_is_an_error(intervention):
    with pytest.raises(WorkbenchError, match=r"there is no head L.*2 layers x 4 heads"):
        intervention.targets(CONFIG)


def test_a_path_leads_from_senders_to_receivers_above_them():
    interleaved = CutPath("K", "L0.H0,L1.H0,L2.H2", "L0.H3,L1.H1,L2.H0", REFERENCE)
    assert interleaved.ends == (as_heads("L0.H0,L1.H0"), as_heads("L1.H1,L2.H0"))
    assert CutPath("K", "", "L1.H1", REFERENCE).ends == ((), ())
    with pytest.raises(WorkbenchError, match=r"no path leads.*a sender in a layer below 1, got L1.H0, L1.H2"):
        CutPath("K", "L1.H0,L1.H2", "L0.H0,L1.H1", REFERENCE)


def test_paths_that_do_not_exist_are_errors():
    with pytest.raises(WorkbenchError, match="not applicable to a post-norm model"):
        every_kind[-1].targets(ModelConfig(7, 6, d_model=8, norm="post"))
    uniform = ModelConfig(7, 6, d_model=8, attention="uniform")
    with pytest.raises(WorkbenchError, match="there is no K path"):
        every_kind[-1].targets(uniform)
    assert CutPath("V", "L0.H0", "L1.H0", REFERENCE).targets(uniform) == (Head(0, 0),)


def test_keep_only_takes_a_way_of_replacing_without_heads():
    for by in (Zero("L0.H0"), Zero((), frozen_patterns=True)):
        with pytest.raises(WorkbenchError, match="without parts, places or modes of its own"):
            KeepOnly("L0.H1", by)


def test_stored_values_that_cannot_be_read_back_are_errors():
    with pytest.raises(WorkbenchError, match=rf"not at hand: expected {REFERENCE.hash[:12]}, got none"):
        from_json(Mean("L0.H1", REFERENCE).to_json(), {})
    with pytest.raises(WorkbenchError, match=r"unknown intervention 'Zeros'.*Zero"):
        from_json({"kind": "Zeros"}, {})
    stored = Resample("L0.H1", Pairing(8)).to_json()
    stored["pairing"]["hash"] = "0" * 64
    with pytest.raises(WorkbenchError, match="comes out differently"):
        from_json(stored, {})

"""The gate: planted leaks are caught, a clean task is left alone, bad tasks are named, results are kept."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from tests.planted_task import PAD, Planted
from tests.tiny_task import Successor
from workbench import audit as audits
from workbench import cache, content
from workbench.app import gate
from workbench.audit import LEAK, Audit, Size, audit, from_json, probing, to_json
from workbench.audit.probing import MEANINGS
from workbench.errors import WorkbenchError
from workbench.findings import Notice, Table
from workbench.registry import ROOT, load_task
from workbench.statistics import wilson
from workbench.task import IGNORE, Batch, Floor, Task

SMALL = Size(fit=600, test=300, copies=1200, steps=40)
N = 300


def probe(found: Audit, name: str) -> audits.Probe:
    return next(p for p in found.probes if p.name == name)


@pytest.fixture(scope="module")
def clean() -> Audit:
    return audit(Planted(), size=SMALL)


# Leaks


@pytest.mark.parametrize(
    ("leak", "catches", "spared"),
    [
        ("place", "position_copy", "cue_without_candidates"),
        ("cue", "cue_without_candidates", "position_copy"),
        ("copies", "exact_copies", "position_copy"),
        ("mark", "candidates_without_cue", "bag_of_words"),
    ],
)
def test_a_planted_leak_is_caught_by_the_right_probe(leak: Any, catches: str, spared: str) -> None:
    found = audit(Planted(leak), size=SMALL)
    assert found.verdict == "leaks"
    assert probe(found, catches).leaks
    assert catches in [p.name for p in found.leaking]
    assert not probe(found, spared).leaks


def test_copies_are_counted_and_what_is_unknown_counts_as_chance() -> None:
    found = audit(Planted("copies"), size=dataclasses.replace(SMALL, test=1000))
    exact = next(o for o in found.overlap if o.kind == "exact")
    assert exact.low < 0.5 < exact.high
    # Half of the sentences are known, the rest is a guess: the leak share is the known share.
    assert probe(found, "exact_copies").leak_share == pytest.approx(exact.share, abs=0.01)
    assert probe(found, "exact_copies").accuracy == pytest.approx(0.5 + exact.share / 2, abs=0.01)
    assert exact.different < exact.drawn


def test_a_clean_task_is_not_flagged_over_20_seeds() -> None:
    for seed in range(20):
        found = audit(Planted(), seed=seed, size=Size(fit=N, test=N, copies=N, steps=30))
        assert found.verdict == "clean", [(p.name, p.leak_share) for p in found.leaking]
        assert len(found.probes) == len(MEANINGS)


def test_the_margin_makes_false_alarms_all_but_impossible() -> None:
    # A probe that guesses between two nouns leaks when Wilson's lower bound lies above chance + .25 (1 - chance).
    needed = next(k for k in range(N) if wilson(k, N).low > 0.5 + LEAK * 0.5)
    tail = sum(math.comb(N, k) for k in range(needed, N + 1)) / 2**N
    assert needed == 204
    assert tail < 3e-10
    # Over every probe and 20 seeds.
    assert tail * len(MEANINGS) * 20 < 1e-7


def test_a_clean_certificate(clean: Audit) -> None:
    assert clean.verdict == "clean"
    assert clean.single
    assert (clean.file, clean.ceiling, clean.predictor) == (
        "tests/planted_task.py", 1.0, "uniform guess between the two nouns",
    )  # fmt: skip
    assert {p.name for p in clean.probes} == set(MEANINGS)
    for p in clean.probes:
        assert p.low <= p.accuracy <= p.high
        assert p.leak_share == pytest.approx((p.accuracy - 0.5) / 0.5, abs=2e-6)
        assert p.share_low == pytest.approx((p.low - 0.5) / 0.5, abs=2e-6)
        assert p.twins is not None
        assert p.twins <= p.accuracy + 1e-9
    # Whoever ignores the cue is right on one of two twins and never on both.
    copier = probe(clean, "position_copy")
    assert copier.twins == 0
    assert 0.4 < copier.accuracy < 0.6


def test_one_scored_position_has_wilsons_interval(clean: Audit) -> None:
    p = probe(clean, "majority_answer")
    at = wilson(round(p.accuracy * SMALL.test), SMALL.test)
    assert (p.low, p.high) == pytest.approx((at.low, at.high), abs=1e-6)


def test_the_same_seed_gives_the_same_certificate(clean: Audit) -> None:
    assert audit(Planted(), size=SMALL) == clean


def test_fixed_periods_leak_by_distance_and_varying_ones_do_not() -> None:
    small = {"n_ctx": 24, "d_vocab": 33, "period_min": 4, "period_max": 10}
    size = Size(fit=500, test=500, copies=500, steps=5)
    varying = audit(load_task("repeated_tokens", small), size=size)
    fixed = audit(load_task("repeated_tokens", {**small, "period": "fixed"}), size=size)
    assert (varying.verdict, fixed.verdict) == ("clean", "leaks")
    assert [p.name for p in fixed.leaking] == ["offset_copy"]
    assert fixed.leaking[0].detail == "7 tokens before the answer"
    assert fixed.leaking[0].leak_share == 1.0
    assert varying.largest.name == "offset_copy"
    assert not varying.single
    assert {p.twins for p in varying.probes} == {None}


# Judging


@dataclasses.dataclass(frozen=True)
class Easy(Successor):
    """The floor is told; the last token decides."""

    chance: float = 1 / 6

    def floor(self) -> Floor:
        return Floor(self.chance, "a guess")


def test_leak_share_by_hand() -> None:
    tiny = Size(fit=200, test=100, copies=200, steps=2)
    half = probe(audit(Easy(chance=0.5), size=tiny), "last_token")
    assert (half.accuracy, half.leak_share, half.leaks) == (1.0, 1.0, True)
    # All right, seen 100 times over: no interval of width 0.
    assert 0.9 < half.low < 1.0
    right = probe(audit(Easy(chance=0.2), size=tiny), "majority_answer")
    assert right.leak_share == pytest.approx((right.accuracy - 0.2) / 0.8, abs=2e-6)
    assert right.leak_share < 0
    assert not right.leaks


def test_no_room_between_chance_and_ceiling() -> None:
    found = audit(Easy(chance=0.96), size=Size(fit=100, test=50, copies=100, steps=2))
    assert found.verdict == "not_applicable"
    assert {p.leak_share for p in found.probes} == {None}
    assert not any(p.leaks for p in found.probes)
    assert "Nothing can be said" in audits.sentence(found)


class Allowing(Easy):
    @property
    def allowed_probes(self) -> dict[str, str]:
        reason = "the last token is all there is"
        return dict.fromkeys(("last_token", "last_2_tokens", "last_3_tokens", "exact_copies", "offset_copy"), reason)


def test_a_probe_that_the_task_allows_is_shown_and_does_not_leak() -> None:
    tiny = Size(fit=2000, test=100, copies=500, steps=2)
    found = audit(Allowing(), size=tiny)
    last = probe(found, "last_token")
    assert last.passes
    assert not last.leaks
    assert last.allowed == "the last token is all there is"
    [table] = [f for f in audits.findings(found) if f.id == "audit.probes"]
    assert isinstance(table, Table)
    rows = {row["probe"]: row["verdict"] for row in table.rows}
    assert rows["last token"] == "allowed: the last token is all there is"
    assert rows["majority answer"] == "clean"


# What is said


def test_json_fits_its_schema_and_comes_back(clean: Audit) -> None:
    schema = json.loads((ROOT / "workbench/schemas/audit.schema.json").read_text())
    for found in (clean, audit(Easy(chance=0.96), size=Size(fit=50, test=50, copies=50, steps=1))):
        data = json.loads(json.dumps(to_json(found), allow_nan=False))
        jsonschema.validate(data, schema)
        assert from_json(data) == found
    assert set(schema["required"]) == set(to_json(clean))
    with pytest.raises(WorkbenchError, match="schema 1, got 0"):
        from_json({**to_json(clean), "schema": 0})


def test_findings_and_banner(clean: Audit) -> None:
    leaky = audit(Planted("mark"), size=SMALL)
    assert audits.banner(clean) is None
    banner = audits.banner(leaky)
    assert banner is not None
    assert (banner.level, banner.section) == ("warning", "")
    assert "candidates without cue" in banner.text
    for found in (clean, leaky):
        findings = audits.findings(found)
        assert {f.section for f in findings} == {"Is the task sound?"}
        notice, probes, overlap = findings
        assert isinstance(notice, Notice)
        assert isinstance(probes, Table)
        assert isinstance(overlap, Table)
        assert notice.text == audits.sentence(found)
        assert len(probes.rows) == len(found.probes)
        assert all({c.key for c in probes.columns} <= set(row) for row in probes.rows)
        assert [row["kind"] for row in overlap.rows] == ["exact", "up to order"]
    assert audits.sentence(clean).startswith("No shortcut solves the task: the best probe (")


def test_the_refusal_names_file_field_and_probe() -> None:
    task = load_task("repeated_tokens", {"period": "fixed", "n_ctx": 24, "d_vocab": 33, "period_max": 8})
    found = audit(task, size=Size(fit=100, test=100, copies=100, steps=1))
    refusal = gate.refusal(found, task)
    assert refusal.exit_code == 3
    said = str(refusal)
    assert "\n" not in said
    assert said.startswith("tasks/repeated_tokens.py: sample: the task repeated_tokens leaks through offset copy: ")
    assert "7 tokens before the answer" in said
    assert "--set task.n_ctx=24" in said
    assert "--allow-leaky" in said


# Bad input


def padded(**changes: torch.Tensor) -> Batch:
    tokens = torch.tensor([[1, 2, 3]] * 4)
    parts: dict[str, Any] = {
        "tokens": tokens,
        "mask": torch.ones_like(tokens, dtype=torch.bool),
        "targets": torch.tensor([[IGNORE, IGNORE, 4]] * 4),
        "scored": torch.tensor([[False, False, True]] * 4),
    }
    return Batch(**{**parts, **changes})


@dataclasses.dataclass(frozen=True)
class Broken(Planted):
    """Says whatever it is given."""

    what: Any = None
    on: str = "test"

    def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
        if split != self.on:
            return super().sample(n, split, stream)
        if isinstance(self.what, Exception):
            raise self.what
        return self.what(super().sample(n, split, stream))


def with_mask(batch: Batch, position: int) -> Batch:
    mask = batch.mask.clone()
    mask[0, position] = False
    return dataclasses.replace(batch, mask=mask)


def with_pad(batch: Batch) -> Batch:
    tokens = batch.tokens.clone()
    tokens[1, 1] = PAD
    return dataclasses.replace(batch, tokens=tokens)


@pytest.mark.parametrize("on", ["train", "validation", "test"])
@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda b: b[:0], r"sample\('{on}'\): the split is empty: expected \d+ sequences, got 0"),
        (lambda b: b[:5], r"sample\('{on}'\): the split has another size than asked: expected \d+ sequences, got 5"),
        (lambda b: dataclasses.replace(b, targets=b.targets.clamp(min=IGNORE) + 0 * b.targets + (b.targets >= 0) * 99),
         r"split '{on}'\): targets contradicts the batch: expected ids from 0 to 68"),
        (lambda b: with_mask(b, 3), r"sample\('{on}'\): mask contradicts tokens: .* got False at the token 'word"),
        (with_pad, r"sample\('{on}'\): mask contradicts tokens: .* got True at the token '_' \(sequence 1, pos"),
        (lambda b: dataclasses.replace(b, positions={"first": torch.full((len(b),), 99)}), r"positions\['first'\]"),
        (IndexError("list index out of range"), r"sample cannot draw the split '{on}': got IndexError: list index"),
        (lambda b: None, r"sample\('{on}'\): .*sample gives no batch: expected a Batch, got None"),
        (lambda b: dataclasses.replace(b, tokens=b.tokens.int()),
         r"sample\('{on}'\): .*tokens is wrong: expected torch.int64"),
        (lambda b: Batch(*(getattr(b, f).repeat(1, 2) for f in ("tokens", "mask", "targets", "scored"))),
         r"sample\('{on}'\): .*tokens is wrong: expected torch.int64 \[\d+, at most 8\]"),
    ],
    ids=["empty", "short", "answer", "mask", "pad", "position", "exception", "nothing", "kind", "wide"],
)  # fmt: skip
def test_a_bad_task_is_one_line_that_names_file_and_field(what: Any, says: str, on: str) -> None:
    with pytest.raises(WorkbenchError, match=r"test_audit\.py.*" + says.replace("{on}", on)) as raised:
        audit(Broken(what=what, on=on), size=SMALL)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 1


def test_splits_that_overlap_are_named() -> None:
    class Same(Planted):
        """Every split draws from one list of 400 sentences, more than a bag of words can hold."""

        def sample(self, n: int, split: str, stream: torch.Generator) -> Batch:
            known = super().sample(400, split, torch.Generator().manual_seed(0))
            return known[torch.randint(400, (n,), generator=stream)]

    found = audit(Same(), size=SMALL)
    exact = next(o for o in found.overlap if o.kind == "exact")
    assert exact.share > 0.9
    assert exact.different <= 400
    assert probe(found, "exact_copies").leaks
    assert "exact copies" in audits.sentence(found)


def test_a_smaller_overlap_is_told_though_no_probe_leaks(clean: Audit) -> None:
    assert "overlap" not in audits.sentence(clean)
    overlap = tuple(
        dataclasses.replace(o, share=0.2, low=0.18, high=0.22) if o.kind == "exact" else o for o in clean.overlap
    )
    found = dataclasses.replace(clean, overlap=overlap)
    assert found.verdict == "clean"
    said = audits.sentence(found)
    assert "at least 20.0% of the test sequences are training sequences" in said
    assert found.file in said
    assert audits.findings(found)[0].level == "warning"


def test_roles_and_allowed_probes_that_do_not_exist() -> None:
    class Misspelt(Planted):
        @property
        def roles(self) -> dict[str, tuple[str, ...]]:
            return {"cue": ("queue",), "candidates": ("first", "second")}

    class Misplaced(Planted):
        @property
        def roles(self) -> dict[str, tuple[str, ...]]:
            return {"candidate": ("first",)}

    class Unknown(Planted):
        @property
        def allowed_probes(self) -> dict[str, str]:
            return {"bag_of_word": "it is fine"}

    with pytest.raises(WorkbenchError, match=r"unknown position \(in .*test_audit.py, roles\) 'queue'"):
        audit(Misspelt(), size=SMALL)
    with pytest.raises(WorkbenchError, match=r"unknown role \(in .*roles\) 'candidate'. Did you mean candidates"):
        audit(Misplaced(), size=SMALL)
    with pytest.raises(WorkbenchError, match=r"allowed_probes\) 'bag_of_word'. Did you mean bag_of_words"):
        audit(Unknown(), size=SMALL)


def test_twins_that_ask_elsewhere() -> None:
    class Odd(Planted):
        def counterfactual(self, batch: Batch) -> Batch:
            twin = super().counterfactual(batch)
            scored, targets = twin.scored.clone(), twin.targets.clone()
            scored[0, 0], targets[0, 0] = True, 0
            return dataclasses.replace(twin, scored=scored, targets=targets)

    with pytest.raises(WorkbenchError, match=r"test_audit.py: counterfactual scores other positions"):
        audit(Odd(), size=SMALL)


# Keeping


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(probing, "Size", lambda: SMALL)
    return tmp_path / "cache"


def test_an_audit_is_made_once(kept: Path) -> None:
    stages: list[str] = []
    first = audits.cached(Planted(), progress=stages.append)
    assert "bag of words" in stages
    stages.clear()
    assert audits.cached(Planted(), progress=stages.append) == first
    assert stages == []
    assert [p.name for p in (kept / "audit").iterdir()] == [f"{first.content}.json"]
    assert audits.cached(Planted("mark")).content != first.content
    assert audits.cached(Planted(), seed=1).content != first.content
    # A damaged file is made again, also one that is JSON of another form.
    for damage in ("{", "{}", "[]", '{"schema": 1}', '"x"', "3"):
        (kept / "audit" / f"{first.content}.json").write_text(damage)
        stages.clear()
        assert audits.cached(Planted(), progress=stages.append) == first
        assert stages


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file"))
    cache.write("audit", "key", [1])
    assert cache.read("audit", "key") is None


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", "/somewhere")
    assert cache.folder() == Path("/somewhere")
    monkeypatch.delenv("WORKBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache.folder() == Path("/caches/attention-workbench")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "attention-workbench"


def test_the_content_hash_changes_with_options_source_and_helpers(tmp_path: Path) -> None:
    plugin = tmp_path / "own"
    (plugin / "tasks").mkdir(parents=True)
    main, helper = plugin / "tasks" / "mine.py", plugin / "tasks" / "_help.py"
    source = (ROOT / "tests" / "planted_task.py").read_text()
    main.write_text(source + "\nfrom ._help import ONE\n\nTASK = Planted()\n")
    helper.write_text("ONE = 1\n")
    task = load_task("mine", plugins=[plugin])
    assert content.sources(task) == [main, helper]
    seen = {content.content_hash(task), content.content_hash(task, 1), content.content_hash(task, "1")}
    seen.add(content.content_hash(load_task("mine", {"leak": "mark"}, [plugin])))
    helper.write_text("ONE = 2\n")
    seen.add(content.content_hash(task))
    main.write_text(main.read_text() + "# changed\n")
    seen.add(content.content_hash(task))
    assert len(seen) == 6
    helper.write_text("ONE = 1\n")
    assert content.content_hash(task) not in seen


def test_sources_follow_the_classes() -> None:
    class Child(Planted):
        pass

    assert [p.name for p in content.sources(Child())] == ["test_audit.py", "planted_task.py"]
    assert isinstance(Child(), Task)

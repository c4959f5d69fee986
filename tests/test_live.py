"""The model in the page: the same logits, scores and errors as PyTorch and the library give, computed under Node."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analyses import ablation_view
from reports.live import core_source, figure
from tests import hand_models, small_models
from tests.live_reference import hooked
from workbench import live, training
from workbench.analysis import Budget
from workbench.app.pipeline import open_subject
from workbench.components import all_parts
from workbench.config import ModelConfig, TrainConfig
from workbench.errors import WorkbenchError
from workbench.findings import Interactive
from workbench.findings_json import from_json, to_json
from workbench.head_scores import HeadSets
from workbench.measure import measure, run
from workbench.registry import load_task
from workbench.runs import open_run
from workbench.statistics import mean_interval

CLEAN = {"states": {}, "frozen": False, "at": []}
Node = Callable[[list[dict[str, Any]]], list[Any]]


@pytest.fixture(scope="module")
def node() -> Node:
    """Runs jobs of ``live_node.js``. Without Node what needs it is skipped; where CI is set it fails."""
    found = shutil.which("node")
    if found is None:
        missing = "no node on the PATH: the page's arithmetic goes untested outside a browser"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)

    def runner(jobs: list[dict[str, Any]]) -> list[Any]:
        script = str(Path(__file__).with_name("live_node.js"))
        asked = json.dumps({"source": core_source(), "jobs": jobs})
        done = subprocess.run([found, script], input=asked, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return runner


def draw_change(given: live.Material, chance: random.Random) -> dict[str, Any]:
    parts = [str(part) for part in all_parts(given.subject.config) if chance.random() < 0.6]
    states = {part: chance.choice(given.ways) for part in parts}
    return {"states": states, "frozen": chance.random() < 0.3, "at": chance.choice([[], [], [0], [0, 1]])}


def sequence_of(given: live.Material, i: int) -> dict[str, Any]:
    batch = given.batch
    donor = given.pairing.donors[i] if given.pairing is not None else None
    return {"tokens": batch.tokens[i].tolist(), "mask": batch.mask[i].int().tolist(), "places": {}, "donor": donor}


def donors(given: live.Material) -> tuple[int, ...] | None:
    return given.pairing.donors if given.pairing is not None else None


def test_logits_agree_with_pytorch_for_every_option(node: Node) -> None:
    jobs, expected = [], []
    for number, shape in enumerate(small_models.SHAPES):
        chance = random.Random(number)
        options = {**shape, "scale_scores": number % 3 != 0}
        given = live.material(small_models.subject(options, number, padded=number % 2 == 0), n=8)
        calls: list[Any] = [["agreement", None]]
        for _ in range(4):
            change, i = draw_change(given, chance), chance.randrange(8)
            wanted = hooked(given.subject.model, given.batch, change, given.reference, donors(given))
            ours = run(given.subject.model, given.batch, live.intervention(change, given)).logits
            assert torch.allclose(ours, wanted, atol=1e-5), (options, change)
            calls.append(["sequence", {"sequence": sequence_of(given, i), "head": "L1.H0", "change": change}])
            expected.append((number, change, wanted[i]))
        jobs.append({"payload": live.payload(given, []), "calls": calls})
    answers = node(jobs)
    assert all(0 < answer[0]["difference"] < 1e-6 for answer in answers)
    for answer, job in zip(answers, jobs, strict=True):
        assert answer[0]["passes"] == 4 * (3 + len(job["payload"]["ways"]))
    seen = [one for answer in answers for one in answer[1:]]
    for got, (number, change, wanted) in zip(seen, expected, strict=True):
        after = torch.tensor(got["logits"]["after"]).view_as(wanted)
        assert torch.allclose(after, wanted, atol=1e-5), (small_models.SHAPES[number], change)


def test_the_shown_difference_is_the_page_s_and_not_pytorch_s_rounding(node: Node) -> None:
    """Large weights, as training makes them: logits in float32 lie further from their own result in float64."""
    subject = small_models.subject({"d_mlp": 12}, 1, padded=False)
    with torch.no_grad():
        for weight in subject.model.parameters():
            weight *= 4
    given = live.material(subject, n=8)
    few = given.batch[: live.CHECKED_SEQUENCES]
    clean = run(subject.model, few).logits
    exact = torch.cat(list(live._checks(given)[1].values())[: len(few)]).view_as(clean)
    assert exact.dtype == torch.float64
    [answer] = node([{"payload": live.payload(given, []), "calls": [["agreement", None]]}])[0]
    rounded = float(2**-24 * exact.abs().max())  # of the logits as they are stored
    assert answer["difference"] < 1.5 * rounded < float((exact - clean).abs().max())


def test_changes_are_not_all_alike() -> None:
    """What the comparison above compares: each state, frozen patterns and places change the logits in their own way."""
    given = live.material(small_models.subject({"d_mlp": 12}, padded=False), n=8)
    changes = [CLEAN]
    for part in ("L0.H0", "L0.mlp"):
        changes += [{"states": {part: way}, "frozen": False, "at": []} for way in given.ways]
    changes += [{**changes[1], "frozen": True}, {**changes[1], "at": [2]}]
    logits = [hooked(given.subject.model, given.batch, c, given.reference, donors(given)) for c in changes]
    for i, one in enumerate(logits):
        for other in logits[:i]:
            assert (one - other).abs().max() > 1e-3


def planted() -> live.Material:
    """An induction model that was planted by hand, on a task that it solves."""
    task = load_task("repeated_tokens", {"n_ctx": 32, "d_vocab": 25, "period_min": 4, "period_max": 10})
    return live.material(hand_models.induction(24, 32).subject(task))


def random_material() -> live.Material:
    return live.material(small_models.subject({"d_mlp": 12}, 3, padded=True), n=24)


def test_scores_are_the_library_s(node: Node) -> None:
    given, loose = planted(), random_material()
    cases = [(given, {"states": states, "frozen": frozen, "at": []}) for states, frozen in (
        ({"L1.H0": "zero"}, False), ({"L1.H0": "mean"}, False), ({"L0.H1": "resample"}, True),
        ({"L0.H0": "zero"}, True), ({"L1.H1": "zero", "L0.H1": "mean"}, False),
    )]  # fmt: skip
    chance = random.Random(1)
    cases += [(loose, change) for change in (draw_change(loose, chance) for _ in range(8)) if change["states"]]
    jobs = [{"payload": live.payload(material, []), "calls": [["score", change]]} for material, change in cases]
    for [got], (material, change) in zip(node(jobs), cases, strict=True):
        wanted = live.intervention(change, material)
        assert wanted is not None
        [effect] = measure(material.subject, material.batch, [wanted])
        assert got["done"] == got["total"] == len(material.batch)
        for when, accuracy, loss in (
            ("before", effect.clean_accuracy, effect.clean_loss),
            ("after", effect.ablated_accuracy, effect.ablated_loss),
        ):
            assert got[when]["accuracy"]["value"] == pytest.approx(accuracy.mean(), abs=1e-6), change
            assert got[when]["loss"]["value"] == pytest.approx(loss.mean(), abs=1e-5)
            interval = mean_interval(accuracy, bounds=(0, 1))
            assert got[when]["accuracy"]["low"] == pytest.approx(interval.low, abs=0.02)
            assert got[when]["accuracy"]["high"] == pytest.approx(interval.high, abs=0.02)


def test_the_planted_circuit_falls_to_the_floor_and_levels_are_counted(node: Node) -> None:
    given = planted()
    changes = [{"states": {head: "zero"}, "frozen": False, "at": []} for head in ("L1.H0", "L1.H1")]
    answers = node([{"payload": live.payload(given, []), "calls": [["score", change] for change in changes]}])[0]
    floor = live.payload(given, [])["task"]["floor"]
    assert answers[0]["before"]["accuracy"]["value"] > 0.99
    assert answers[0]["after"]["accuracy"]["high"] < floor
    assert answers[0]["ties"] > 500  # without the induction head every ordinary token is level
    assert answers[1]["after"] == answers[1]["before"]


SAMPLES = (
    [0.0, 1.0, 0.5, 0.25, 1.0, 0.75, 0.5, 1.0],
    [1.0] * 64,
    [1.0] * 63 + [0.5],
    [0.0] * 60 + [1.0] * 4,
    [0.5] * 59 + [1.0, 0.0, 0.25, 0.75, 0.9],
    [0.3],
)


def test_intervals_follow_the_library_s_rule(node: Node) -> None:
    answers = node([{"named": [["meanInterval", values, [0, 1]] for values in SAMPLES]}])[0]
    for got, values in zip(answers, SAMPLES, strict=True):
        wanted = mean_interval(np.array(values), bounds=(0, 1))
        # Resamples are drawn from another stream; without any the bounds are exact.
        tolerance = 0.04 if values is SAMPLES[0] else 0.01 if values is SAMPLES[4] else 1e-9
        got_all = [got[key] for key in ("value", "low", "high")]
        assert got_all == pytest.approx([wanted.value, wanted.low, wanted.high], abs=tolerance)
        assert got["high"] > got["low"]


def test_the_hash_is_sha256(node: Node) -> None:
    texts = [bytes((i * 7 + n) % 256 for i in range(n)) for n in (*range(130), 1000)]
    asked = [["sha256", [*text]] for text in texts]
    assert node([{"named": asked}])[0] == [hashlib.sha256(text).hexdigest() for text in texts]


def test_damaged_weights_are_found(node: Node) -> None:
    payload = live.payload(random_material(), [])
    data = payload["weights"]["data"]
    spoiled = [data[:100] + ("A" if data[100] != "A" else "B") + data[101:], data[:-8], "%%%", ""]
    jobs = [{"payload": {**payload, "weights": {**payload["weights"], "data": text}}, "calls": []} for text in spoiled]
    for answer in node(jobs):
        assert answer["error"].startswith("The weights in this page are damaged: ")


def test_a_difference_is_seen(node: Node) -> None:
    """The agreement is measured: another model's logits do not agree, nor do logits that are not numbers."""
    given = random_material()
    payload = live.payload(given, [])
    checks, stored = live._checks(live.material(small_models.subject({"d_mlp": 12}, 4), n=24))
    tensors = {name: p.detach() for name, p in given.subject.model.named_parameters()}
    tensors |= {f"reference.z.{i}": mean for i, mean in enumerate(given.reference.mean_z)}
    tensors |= {f"reference.mlp.{i}": mean for i, mean in enumerate(given.reference.mean_mlp)}
    other = {**payload, "checks": checks, "weights": live.pack(tensors | stored)}
    undefined = {name: torch.full_like(logits, torch.nan) for name, logits in stored.items()}
    strange = {**payload, "checks": checks, "weights": live.pack(tensors | undefined)}
    far, none = node([{"payload": p, "calls": [["agreement", None]]} for p in (other, strange)])
    assert far[0]["difference"] > 1e-2
    assert none[0]["difference"] is None  # NaN, which JSON does not have


def test_bad_requests_are_one_clear_error(node: Node) -> None:
    given = live.material(small_models.subject({}, padded=False), n=8)
    payload = live.payload(given, [])
    good = sequence_of(given, 0)

    def ask(change: dict[str, Any] | None = None, head: str = "L1.H0", **sequence: Any) -> list[Any]:
        return ["sequence", {"sequence": {**good, **sequence}, "head": head, "change": {**CLEAN, **(change or {})}}]

    part, mean = {"states": {"L0.H0": "resample"}}, {"states": {"L0.H0": "mean"}}
    asked = [
        (ask(tokens=[]), "The sequence is empty; it needs 1 to 6 tokens."),
        (ask(tokens=[1] * 7), "The sequence has 7 tokens; the model's context holds 6."),
        (ask(tokens=[1, 7]), "Token id 7 lies outside the vocabulary of 7."),
        (ask(tokens=[1, -1]), "Token id -1 lies outside the vocabulary of 7."),
        (ask(head="L2.H0"), "This model has no part L2.H0."),
        (ask({"states": {"L0.mlp": "zero"}}), "This model has no part L0.mlp."),
        (ask({"states": {"__proto__x": "zero"}}), "This model has no part __proto__x."),
        (ask({"states": {"L0.H0": "off"}}), "A part cannot be set to off; it can be zero, mean or resample."),
        (ask({**mean, "at": [6]}), "Position 6 lies outside this sequence of 6 tokens."),
        (ask({**mean, "at": ["cue"]}), "This sequence has no place named cue."),
        (ask(part, donor=None), "This sequence is paired with no other one"),
    ]
    answers = node([{"payload": payload, "calls": [call for call, _ in asked]}])[0]
    for answer, (call, text) in zip(answers, asked, strict=True):
        assert answer.get("error", "").startswith(text), (call, answer)
    shorter = {**payload, "reference": {**payload["reference"], "filled": [True] * 4 + [False] * 2}}
    donor = {**payload, "samples": {**payload["samples"], "mask": [[1] * 4 + [0] * 2] * 8}}
    whole = {"mask": None}
    missing, nothing = node([
        {"payload": shorter, "calls": [ask(mean, **whole)]}, {"payload": donor, "calls": [ask(part, **whole)]}
    ])  # fmt: skip
    assert missing[0]["error"].startswith("There is no mean at position 4")
    assert nothing[0]["error"].startswith("The paired sequence has nothing to give at position 4")


def test_a_shorter_sequence_takes_means_and_donors_at_its_own_positions(node: Node) -> None:
    given = live.material(small_models.subject({"d_mlp": 12}, 5, padded=False), n=8)
    change = {"states": {"L0.H1": "mean", "L0.mlp": "resample", "L1.H0": "mean"}, "frozen": False, "at": []}
    tokens = given.batch.tokens[2, :4].tolist()
    request = {"sequence": {"tokens": tokens, "mask": None, "places": {}, "donor": donors(given)[2]}, "head": "L0.H0"}
    answer = node([{"payload": live.payload(given, []), "calls": [["sequence", {**request, "change": change}]]}])[0][0]
    wanted = hooked(given.subject.model, given.batch, change, given.reference, donors(given))[2, :4]
    assert torch.allclose(torch.tensor(answer["logits"]["after"]).view_as(wanted), wanted, atol=1e-5)


def test_the_pattern_is_the_asked_head_s(node: Node) -> None:
    given = live.material(small_models.subject({}, 6, padded=False), n=8)
    request = {"sequence": sequence_of(given, 1), "head": "L1.H1", "change": CLEAN}
    answer = node([{"payload": live.payload(given, []), "calls": [["sequence", request]]}])[0][0]
    wanted = given.subject.patterns(given.batch.tokens[1:2])[0, 1, 1]
    for when in ("before", "after"):
        assert np.allclose(np.array(answer["pattern"][when]).reshape(6, 6), wanted, atol=1e-6)


def test_newer_messages_supersede_older_ones_of_their_kind(node: Node) -> None:
    given = planted()
    look = {"sequence": sequence_of(given, 0), "head": "L1.H0"}
    zero = {"states": {"L1.H0": "zero"}, "frozen": False, "at": []}
    messages = [
        {"id": 1, "kind": "score", "change": zero},
        {"id": 2, "kind": "sequence", "change": zero, **look},
        {"id": 3, "kind": "score", "change": CLEAN},
        {"id": 4, "kind": "sequence", "change": CLEAN, **look},
        {"id": 5, "kind": "agreement"},
        {"id": 6, "kind": "sequence2", "change": CLEAN},
    ]
    answers = node([{"payload": live.payload(given, []), "messages": messages}])[0]
    assert answers["1"] == {"id": 1, "superseded": True}
    assert answers["2"] == {"id": 2, "superseded": True}
    assert answers["3"]["result"]["after"]["accuracy"]["value"] > 0.99
    assert len(answers["4"]["result"]["logits"]["after"]) == 32 * 25
    assert answers["5"]["result"]["difference"] < 1e-4
    assert answers["6"]["error"] == "The model does not understand sequence2."


def test_the_payload_is_plain_and_refuses_what_it_cannot_mean() -> None:
    given = random_material()
    payload = live.payload(given, [live.Preset("nothing", "for the test", {})])
    finding = Interactive(id="live", title="Live", payload=payload)
    data = json.loads(json.dumps(to_json(finding), allow_nan=False))
    assert to_json(from_json(data)) == data
    assert given.ways == ("zero", "mean")
    assert payload["samples"]["donors"] is None
    with pytest.raises(WorkbenchError, match="state"):
        live.intervention({"states": {"L0.H0": "resample"}}, given)
    assert live.intervention(CLEAN, given) is None
    served = live.payload(given, [], "server")
    assert (served["weights"], served["checks"], served["backend"]) == (None, [], "server")


def test_another_draw_gives_other_sequences_and_a_model_its_own_hash() -> None:
    subject = small_models.subject({}, 0)
    first, again, other = (live.material(subject, draw, n=8) for draw in (0, 0, 1))
    assert torch.equal(first.batch.tokens, again.batch.tokens)
    assert not torch.equal(first.batch.tokens, other.batch.tokens)
    assert live.model_hash(subject) != live.model_hash(small_models.subject({}, 1))


def test_a_model_too_large_for_a_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_PARAMETERS", 100)
    payload = live.payload(random_material(), [])
    assert payload["weights"] is None
    page = figure(Interactive(id="live", title="Live", payload=payload), "live")
    assert "workbench ablate RUN" in page
    assert "1 192 parameters, and a page carries at most 100" in page
    assert "live-data" not in page


PLUGIN = """\"\"\"A task of a user's own.\"\"\"
from tasks.repeated_tokens import TASK as GIVEN
class Own(type(GIVEN)):
    pass
TASK = Own(n_ctx=16, d_vocab=12, period_min=2, period_max=5)
"""


def test_a_run_is_named_so_that_it_opens_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plugins", "others"):
        (tmp_path / name / "tasks").mkdir(parents=True)
        (tmp_path / name / "tasks" / "own_words.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    load_task("own_words", plugins=["others"])
    shape = ModelConfig(d_vocab=12, n_ctx=16, n_heads=1, d_model=8)
    run_of = training.train(
        load_task("own_words", plugins=["plugins"]), shape, TrainConfig(steps=1), 0, Path("runs/own")
    )
    subject = open_subject(open_run("runs/own"), ["plugins"])
    assert str(subject.run.folder) == "runs/own"
    found = live.payload(live.material(subject, n=8), [], "server")["run"]
    assert found == {
        "hash": run_of.hash, "folder": str(tmp_path / "runs" / "own"), "plugins": [str(tmp_path / "plugins")]
    }  # fmt: skip
    monkeypatch.setattr(live, "MOST_PARAMETERS", 100)
    large = live.payload(live.material(subject, n=8), [])
    page = figure(Interactive(id="live", title="Live", payload=large), "live")
    assert f"workbench ablate {tmp_path}/runs/own --plugins {tmp_path}/plugins<" in page


def test_the_analysis_offers_the_planted_sets_by_name() -> None:
    given = planted()
    [finding] = ablation_view.ANALYSIS.run(given.subject, Budget(), lambda stage: None)
    assert isinstance(finding, Interactive)
    presets = {preset["name"]: preset["states"] for preset in finding.payload["presets"]}
    assert presets["without the induction heads"] == {"L1.H0": "mean"}
    assert presets["without the previous-token heads"] == {"L0.H0": "mean"}
    assert presets["only the circuit"] == {"L0.H1": "mean", "L1.H1": "mean"}
    generic = ablation_view.presets(given.subject.config, HeadSets((), ()))
    assert [preset.name for preset in generic] == ["without any head", "without the last layer's heads"]

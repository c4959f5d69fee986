"""What every registered task and analysis must keep to, whoever wrote it. New files are picked up by themselves."""

from __future__ import annotations

import gc
import json

import pytest
import torch

from workbench.analysis import NEEDS, Budget, missing_needs
from workbench.config import model_config
from workbench.findings_json import from_json, to_json
from workbench.model.transformer import Transformer
from workbench.registry import find, load_analysis, load_task
from workbench.rng import stream
from workbench.subject import Subject
from workbench.task import IGNORE, SPLITS, Task, capabilities

TASKS, ANALYSES = sorted(find("tasks")), sorted(find("analyses"))


def parts(batch) -> list[torch.Tensor]:
    named = [*batch.positions.items(), *batch.key_masks.items()]
    return [batch.tokens, batch.mask, batch.targets, batch.scored, *(value for _, value in sorted(named))]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", SPLITS)
def test_task_batches_are_consistent_and_repeat(name, split):
    task = load_task(name)
    batch = task.sample(12, split, stream(5, "contract"))
    batch.check(len(task.vocabulary), name)
    assert batch.tokens.shape == (12, batch.tokens.shape[1])
    assert batch.tokens.shape[1] <= task.n_ctx
    again = task.sample(12, split, stream(5, "contract"))
    assert all(torch.equal(a, b) for a, b in zip(parts(batch), parts(again), strict=True))


@pytest.mark.parametrize("name", TASKS)
def test_neighbouring_seeds_and_steps_are_independent(name):
    task = load_task(name)
    addresses = [(0, 0), (1, 0), (0, 1)]
    drawn = [
        {tuple(row) for row in task.sample(64, "train", stream(seed, "train", step)).tokens.tolist()}
        for seed, step in addresses
    ]
    # Independent streams over a small language meet by chance now and then; one shared stream would give them all.
    assert len(drawn[0] & drawn[1]) <= 16
    assert len(drawn[0] & drawn[2]) <= 16


@pytest.mark.parametrize("name", TASKS)
def test_begin_token_exactly_once(name):
    task = load_task(name)
    if task.vocabulary.bos is None:
        return
    tokens = task.sample(32, "test", stream(0, "bos")).tokens
    assert (tokens == task.vocabulary.bos).sum(dim=1).tolist() == [1] * 32
    assert (tokens[:, 0] == task.vocabulary.bos).all()


@pytest.mark.parametrize("name", TASKS)
def test_vocabulary_round_trip(name):
    task = load_task(name)
    ids = list(range(len(task.vocabulary)))
    assert task.vocabulary.encode(task.vocabulary.decode(ids)) == ids


@pytest.mark.parametrize("name", TASKS)
def test_ceiling_lies_above_the_floor_and_bayes_loss_averages_to_it(name):
    task = load_task(name)
    ceiling = task.ceiling()
    if ceiling is None:
        return
    assert task.floor().accuracy < ceiling.accuracy <= 1
    if "bayes_loss" in capabilities(task):
        batch = task.sample(4000, "test", stream(0, "ceiling"))
        loss = task.bayes_loss(batch)
        assert (loss[batch.targets == IGNORE] == 0).all()
        assert (loss.sum() / (batch.targets != IGNORE).sum()).item() == pytest.approx(ceiling.loss, rel=0.01)


@pytest.mark.parametrize("name", TASKS)
def test_counterfactual_flips_every_answer_and_is_its_own_inverse(name):
    task = load_task(name)
    batch = task.sample(16, "test", stream(0, "twin"))
    twin = task.counterfactual(batch)
    assert (twin is not None) == ("counterfactual" in capabilities(task))
    if twin is not None:
        assert (twin.targets[batch.scored] != batch.targets[batch.scored]).all()
        assert torch.equal(task.counterfactual(twin).tokens, batch.tokens)


def small(task: Task, **options: object) -> Transformer:
    shape = {"n_heads": 2, "d_model": 16, "d_head": 8, **options}
    return Transformer(model_config(shape, d_vocab=len(task.vocabulary), n_ctx=task.n_ctx))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
def test_padding_leaks_into_nothing_that_is_scored(name, positions):
    """A sequence alone, without its padding, has the logits that it has in a batch with more padding behind it; and the
    last real token that has a target can be scored."""
    task = load_task(name)
    batch = task.sample(8, "test", stream(0, "padding"))
    model = small(task, positions=positions)
    with torch.no_grad():
        together = model(batch.tokens, batch.mask, path="explicit")
        for i in range(len(batch)):
            length = int(batch.mask[i].nonzero()[-1]) + 1
            assert bool(batch.mask[i, :length].all())
            assert not bool((batch.scored[i] & ~batch.mask[i]).any())
            for path in ("explicit", "fast"):
                alone = model(batch.tokens[i : i + 1, :length], path=path)[0]
                assert torch.allclose(together[i, :length], alone, atol=2e-6)


@pytest.mark.parametrize("name", TASKS)
def test_memory_is_flat_over_fifty_models(name):
    """Opened, used and dropped: as many tensors live after fifty as after five."""
    batch = load_task(name).sample(2, "test", stream(0, "memory"))

    def alive_after(times: int) -> int:
        for seed in range(times):
            task = load_task(name)
            subject = Subject(small(task), task.vocabulary, task, seed=seed)
            with torch.no_grad():
                subject.model.run_with_cache(batch.tokens, batch.mask)
        del task, subject
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    assert alive_after(50) == alive_after(5)


@pytest.mark.parametrize("name", ANALYSES)
def test_analysis_findings_survive_json_and_have_unique_ids(name):
    analysis = load_analysis(name)
    assert set(analysis.needs) <= set(NEEDS)
    task = load_task("repeated_tokens", {"n_ctx": 24, "d_vocab": 17, "period_min": 4, "period_max": 8})
    config = model_config({"n_heads": 2, "d_model": 16}, d_vocab=17, n_ctx=24)
    subject = Subject(Transformer(config), task.vocabulary, task)
    if missing_needs(analysis, subject):
        return
    findings = analysis.run(subject, Budget(samples=16, selection_samples=16), lambda stage: None)
    ids = [f.id for f in findings]
    assert len(set(ids)) == len(ids)
    for finding in findings:
        data = json.loads(json.dumps(to_json(finding), allow_nan=False))
        assert to_json(from_json(data)) == data

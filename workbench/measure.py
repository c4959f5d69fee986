"""Carrying interventions out: passes with a count of firings, and effects paired by sequence.

Everything runs in chunks of whole sequences, without gradients: an intervention that only replaces outputs restarts
where it begins, one that holds the norm or cuts goes through the hooks. An intervention that replaces nothing is an
error: its "effect" would be a plausible zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.ablation import Intervention, Joint
from workbench.bridge import Model
from workbench.errors import WorkbenchError
from workbench.hooks import intervene
from workbench.metrics import require_answers, row_scores
from workbench.model.transformer import Transformer
from workbench.puts import Sources
from workbench.reference import CHUNK_TOKENS
from workbench.restart import evaluate
from workbench.statistics import Bounds, paired_interval
from workbench.subject import Subject
from workbench.task import Batch
from workbench.work import counting

AGREEMENT = 1e-4
"""How far the two ways to an intervention may differ in float32, relative to max(1, largest |logit|), before it is a
fault and not rounding."""

CHECKED = 2
"""Sequences on which they are compared, each time."""

METRICS = ("accuracy", "loss", "logit difference")


@dataclass(frozen=True)
class Pass:
    """What a pass gave.

    Attributes:
        logits: of the whole batch. fired: the sequences on which every edit really took place.
        expected: the sequences on which it should have (0 where nothing is replaced: a clean pass).
    """

    logits: Float[Tensor, "batch pos d_vocab"]
    fired: int
    expected: int


@dataclass(frozen=True, eq=False)
class Effect:
    """An intervention beside the clean pass, one value a sequence over its scored positions.

    Attributes:
        intervention: what was done. clean, ablated: ``[metric n]``: accuracy (a share), loss (nats) and, where the
            wrong answers are known, the logit difference (right minus wrong answer).
        fired, expected: sequences on which every edit took place, and should have.
    """

    intervention: Intervention
    clean: Float[np.ndarray, "metric n"]
    ablated: Float[np.ndarray, "metric n"]
    fired: int
    expected: int

    @property
    def clean_accuracy(self) -> Float[np.ndarray, " n"]:
        """Share of scored positions that are right, clean."""
        return self.clean[0]

    @property
    def ablated_accuracy(self) -> Float[np.ndarray, " n"]:
        """The same under the intervention."""
        return self.ablated[0]

    @property
    def clean_loss(self) -> Float[np.ndarray, " n"]:
        """Cross entropy in nats, clean."""
        return self.clean[1]

    @property
    def ablated_loss(self) -> Float[np.ndarray, " n"]:
        """The same under the intervention."""
        return self.ablated[1]

    @property
    def accuracy_effect(self) -> Float[np.ndarray, " n"]:
        """Ablated minus clean accuracy."""
        return self.ablated[0] - self.clean[0]

    @property
    def loss_effect(self) -> Float[np.ndarray, " n"]:
        """Ablated minus clean loss."""
        return self.ablated[1] - self.clean[1]

    @property
    def logit_difference_effect(self) -> Float[np.ndarray, " n"]:
        """Ablated minus clean logit difference.

        Raises:
            WorkbenchError: the wrong answers were not given.
        """
        if len(self.clean) < len(METRICS):
            raise WorkbenchError(
                "a logit difference needs its labels",
                expected="the ids of the wrong answers (measure(..., incorrect=...))",
                got="none",
                next_step="Take them from the task's counterfactual, or judge by accuracy or loss.",
            )
        return self.ablated[2] - self.clean[2]

    def frame(self) -> pd.DataFrame:
        """Rows metric, clean, ablated, effect, low, high, n, fired, semantics; one a metric that is known."""
        rows = []
        for metric, clean, ablated in zip(METRICS, self.clean, self.ablated, strict=False):
            bounds: Bounds | None = (0, 1) if metric == "accuracy" else None
            at = paired_interval(ablated, clean, bounds=bounds)
            cells = (float(clean.mean()), float(ablated.mean()), at.value, at.low, at.high, at.n)
            rows.append((metric, *cells, f"{self.fired}/{self.expected}", self.intervention.semantics))
        columns = ["metric", "clean", "ablated", "effect", "low", "high", "n", "fired", "semantics"]
        return pd.DataFrame(rows, columns=columns)


def run(model: Model, batch: Batch, intervention: Intervention | None = None, *, chunk: int | None = None) -> Pass:
    """One pass over a batch, through the hooks: clean for None, else under the intervention.

    Args:
        chunk: sequences at once; None for about 4,096 tokens. It changes the result by rounding at most.

    Raises:
        WorkbenchError: parts or places that do not exist, nothing to replace (except a keep-only of everything, which
            is the clean pass), a reference set or pairing that does not fit the batch, or an edit that never took
            place.
    """
    with torch.no_grad():
        passes = [_hooked(part, intervention) for part in _parts(model, batch, chunk)]
    fired, expected = sum(p.fired for p in passes), sum(p.expected for p in passes)
    _require_fired(intervention, fired, expected)
    return Pass(torch.cat([p.logits for p in passes]), fired, expected)


@dataclass
class _Collected:
    """What comes in about one intervention, chunk by chunk."""

    clean: list[Tensor] = field(default_factory=list)
    ablated: list[Tensor] = field(default_factory=list)
    fired: int = 0
    expected: int = 0

    def effect(self, intervention: Intervention) -> Effect:
        _require_fired(intervention, self.fired, self.expected)
        clean, ablated = (torch.cat(parts, dim=1).double().cpu().numpy() for parts in (self.clean, self.ablated))
        return Effect(intervention, clean, ablated, self.fired, self.expected)


def measure(
    subject: Subject,
    batch: Batch,
    interventions: Sequence[Intervention],
    *,
    incorrect: Int[Tensor, "batch pos"] | None = None,
    chunk: int | None = None,
) -> list[Effect]:
    """The effect of each intervention beside the clean pass of the same path; errors as :func:`run`.

    The first intervention that restarts is also run through the hooks, on the first sequences of each chunk: a
    difference above ``AGREEMENT`` is an error.

    Args:
        incorrect: ids of wrong answers, read at scored positions, for the logit difference. None leaves it out.
        chunk: as in :func:`run`.
    """
    for one in interventions:
        one.targets(subject.config)  # what cannot be is said before anything is computed
    require_answers(batch, batch.targets, subject.config.d_vocab, "targets")
    if incorrect is not None:
        require_answers(batch, incorrect, subject.config.d_vocab, "incorrect answers")
    # A restart passes no hook point, so what somebody hung there needs the hooks' path.
    own = isinstance(subject.model, Transformer) and not subject.model.is_watched
    collected = [_Collected() for _ in interventions]
    # What holds patterns restarts beside the others of its kind: its clean pass is that of the same path.
    fast = {
        frozen: [i for i, one in enumerate(interventions) if own and _restarts(one) and one.frozen_patterns == frozen]
        for frozen in (False, True)
    }
    slow = [i for i in range(len(interventions)) if i not in {*fast[False], *fast[True]}]
    with torch.no_grad(), counting(len(batch) * len(interventions)) as step:
        for part in _parts(subject.model, batch, chunk):
            wrong = None if incorrect is None else incorrect[part.start : part.stop]
            for some in filter(None, fast.values()):
                _restart(part, [interventions[i] for i in some], wrong, [collected[i] for i in some], step)
            clean = row_scores(part.clean[part.batch.scored], part.batch, wrong) if slow else None
            for i in slow:
                done = _hooked(part, interventions[i])
                into = collected[i]
                into.clean.append(clean)  # type: ignore[arg-type]
                into.ablated.append(row_scores(done.logits[part.batch.scored], part.batch, wrong))
                into.fired, into.expected = into.fired + done.fired, into.expected + done.expected
                step(len(part.batch))
    return [at.effect(one) for at, one in zip(collected, interventions, strict=True)]


def _parts(model: Model, batch: Batch, chunk: int | None) -> Iterator[Sources]:
    if chunk is not None and chunk < 1:
        raise WorkbenchError("a chunk cannot be used", expected="at least 1 sequence", got=chunk)
    size = chunk or max(1, CHUNK_TOKENS // batch.tokens.shape[1])
    for start in range(0, len(batch), size):
        yield Sources(model, batch, start, min(start + size, len(batch)))


def _restarts(intervention: Intervention) -> bool:
    if isinstance(intervention, Joint):
        return all(map(_restarts, intervention.members))
    return intervention.replaces and not intervention.frozen_norm


def _restart(
    part: Sources,
    interventions: Sequence[Intervention],
    wrong: Tensor | None,
    into: Sequence[_Collected],
    step: Callable[[int], None],
) -> None:
    """Interventions on some sequences by restarts; the pass in which nothing is put is the clean one beside them."""
    assert isinstance(part.model, Transformer)
    puts = [part.puts(one) for one in interventions]
    scores: list[list[Tensor]] = [[] for _ in (None, *puts)]
    patterns = list(part.patterns.values()) if interventions[0].frozen_patterns else None
    for outcome in evaluate(part.model, part.batch, [[], *puts], patterns=patterns):
        few = part.batch[outcome.start : outcome.stop]
        labels = None if wrong is None else wrong[outcome.start : outcome.stop]
        if outcome.start == 0 and 1 in outcome.indices:
            _agree(part, interventions[0], outcome.logits[outcome.indices.index(1)], outcome.stop)
        for index, logits, fired in zip(outcome.indices, outcome.logits, outcome.fired, strict=True):
            scores[index].append(row_scores(logits, few, labels))
            if index:
                into[index - 1].fired += int(fired.sum())
                step(len(few))
    clean = torch.cat(scores[0], dim=1)
    for at, put, ablated in zip(into, puts, scores[1:], strict=True):
        at.clean.append(clean)
        at.ablated += ablated
        at.expected += len(part.batch) if put else 0


def _agree(part: Sources, intervention: Intervention, logits: Tensor, n: int) -> None:
    """Raise where the restart's logits of the first ``n`` sequences (of a few of them) are not what the hooks give."""
    few = Sources(part.model, part.whole, part.start, part.start + min(CHECKED, n))
    expected = _hooked(few, intervention).logits[few.batch.scored]
    difference = float((logits[: len(expected)] - expected).abs().max())
    if not difference <= AGREEMENT * max(1.0, float(expected.abs().max())):
        raise WorkbenchError(
            f"two ways to one intervention disagree ({intervention!r})",
            expected=f"the logits of the hooks to {AGREEMENT:.0e}",
            got=f"a difference of {difference:.1e}",
        )


def _hooked(part: Sources, intervention: Intervention | None) -> Pass:
    edits = [] if intervention is None else part.edits(intervention)
    if not edits:
        return Pass(part.clean, 0, 0)
    assert intervention is not None
    with intervene(part.model, edits) as firings:
        logits = part.model(part.batch.tokens, part.batch.mask, path="explicit")
    if not intervention.targets(part.model.config):
        return Pass(logits, 0, 0)  # a keep-only of everything: what is held is held at its own value
    fired = min(firings.complete, int(part.reached(intervention).sum()))
    return Pass(logits, fired, len(part.batch))


def _require_fired(intervention: Intervention | None, fired: int, expected: int) -> None:
    """Raise where an intervention took place on no sequence: its result would equal the clean one and mean nothing."""
    if expected and not fired:
        raise WorkbenchError(
            f"an intervention never took place: {intervention!r}",
            expected="a real position to replace at in some sequence",
            got=f"none in {expected}",
        )

"""What a served model answers: attention and logits of one sequence, the score over the samples, before and after.

A change to one sequence goes through the hooks, the score restarts where it begins; both are the library's own ways,
and ``agreement`` says how far they are from a plain pass. Work comes in short pieces, so that whoever asks can leave.
"""

from __future__ import annotations

import base64
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from workbench import live
from workbench.ablation import Intervention
from workbench.app.questions import AskedSequence, Question, change_of, head_of, sequence_of
from workbench.app.samples import Samples
from workbench.components import all_parts
from workbench.errors import WorkbenchError
from workbench.hooks import capture, intervene
from workbench.model.transformer import Transformer
from workbench.puts import Sources
from workbench.reference import Pairing, ReferenceSet
from workbench.restart import evaluate
from workbench.statistics import mean_intervals
from workbench.subject import Subject
from workbench.task import IGNORE, Batch

REPORT_SECONDS = 0.12
CHECKED = 2
"""Sequences on which the ways to an answer are compared."""

KEPT_DRAWS, KEPT_LOOKS = 2, 2
Line = dict[str, Any]
T = TypeVar("T")


class Answers:
    """Answers about one subject. Not for several threads at once: hooks hang on the one model.

    Args:
        n: sequences in each draw.
    """

    def __init__(self, subject: Subject, n: int = live.SAMPLES) -> None:
        if not isinstance(subject.model, Transformer):
            raise WorkbenchError("this model is not served", expected="a Transformer", got=type(subject.model).__name__)
        self.subject, self.model, self.n = subject, subject.model, n
        self._draws: OrderedDict[Hashable, Samples] = OrderedDict()
        self._looks: OrderedDict[Hashable, tuple[Sources, live.Material]] = OrderedDict()

    def lines(self, question: Question) -> Iterator[Line | None]:
        """The lines of the reply, the last one a result or an error; None between two pieces of work.

        Run each step without gradients.
        """
        answer = getattr(self, f"_{question.kind}")
        for line in answer(question, self._samples(question.draw)):
            yield line and {"id": question.id, **line}

    def _samples(self, draw: int) -> Samples:
        make = lambda: Samples(live.material(self.subject, draw, self.n))  # noqa: E731
        return _kept(self._draws, draw, KEPT_DRAWS, make)

    def _load(self, question: Question, samples: Samples) -> Iterator[Line | None]:
        yield {"result": {}}

    def _draw(self, question: Question, samples: Samples) -> Iterator[Line | None]:
        yield {"result": {"samples": live.samples(samples.given)}}

    def _agreement(self, question: Question, samples: Samples) -> Iterator[Line | None]:
        """Hooks beside a plain pass, clean; and under each way to replace a part, restarts beside hooks."""
        given = samples.given
        part = Sources(self.model, given.batch, 0, min(CHECKED, len(given.batch)))
        off = [part.clean - self.model(part.batch.tokens, part.batch.mask, path="fast")]
        parts = [str(one) for one in all_parts(self.subject.config)]
        for number, way in enumerate(given.ways):
            change = live.intervention({"states": dict.fromkeys(parts[number % 2 :: 2] or parts, way)}, given)
            assert change is not None
            off.append(self._restarted(part, change) - self._hooked(part, change)[part.batch.scored])
            yield None
        difference = max(float(one.abs().max()) for one in off)
        if not math.isfinite(difference):
            raise WorkbenchError("the model's logits are not finite", expected="numbers", got="nan or infinity")
        yield {"result": {"difference": difference, "passes": len(off)}}

    def _sequence(self, question: Question, samples: Samples) -> Iterator[Line | None]:
        config = self.subject.config
        asked = sequence_of(question.fields["sequence"], config, self.n)
        head = head_of(question.fields["head"], config)
        change = change_of(question.fields["change"], config)
        part, given = self._looked_at(question.draw, asked, samples)
        if given.pairing is None and samples.given.pairing is not None and "resample" in change["states"].values():
            raise WorkbenchError(
                "this sequence is paired with no other one of its length", next_step="Use zero or mean."
            )
        intervention = live.intervention(change, given)
        name = f"blocks.{head.layer}.attn.hook_pattern"
        before, logits = part.patterns[name], part.clean
        if intervention is None:
            after, changed = before, logits
        else:
            with intervene(self.model, part.edits(intervention)), capture(self.model, [name]) as kept:
                changed = self.model(part.batch.tokens, part.batch.mask, path="explicit")
            after = kept[name]
        yield {
            "result": {
                "pattern": {"before": _packed(before[0, head.head]), "after": _packed(after[0, head.head])},
                "logits": {"before": _packed(logits[0]), "after": _packed(changed[0])},
            }
        }

    def _looked_at(self, draw: int, asked: AskedSequence, samples: Samples) -> tuple[Sources, live.Material]:
        """The sequence with its clean passes, and the material cut to its length."""

        def make() -> tuple[Sources, live.Material]:
            t, rows = len(asked.tokens), [asked.tokens]
            given, mask = samples.given, [asked.mask]
            paired = given.pairing is not None and asked.donor is not None and t <= given.batch.tokens.shape[1]
            if paired:
                rows.append(tuple(given.batch.tokens[asked.donor, :t].tolist()))
                mask.append((True,) * t)
            tokens = torch.tensor(rows, device=given.batch.tokens.device)
            places = {name: tokens.new_full((len(rows),), at) for name, at in asked.places}
            batch = Batch(
                tokens, torch.tensor(mask, device=tokens.device), torch.full_like(tokens, IGNORE),
                torch.zeros_like(tokens, dtype=torch.bool), places,
            )  # fmt: skip
            # Two sequences have one pairing: each with the other.
            pairing = Pairing(2, self.subject.seed) if paired else None
            cut = live.Material(self.subject, batch, given.stream, _cut(given.reference, t), pairing)
            return Sources(self.model, batch, 0, 1), cut

        return _kept(self._looks, (draw, asked), KEPT_LOOKS, make)

    def _score(self, question: Question, samples: Samples) -> Iterator[Line | None]:
        change = live.intervention(change_of(question.fields["change"], self.subject.config), samples.given)
        judged_before, judged_after, reported, fired = [], [], time.monotonic(), 0
        for start in samples.starts:
            part = samples.piece(start)
            clean = samples.clean(start)
            judged_before.append(clean)
            judged_after.append(clean if change is None else samples.judge(part, self._rows(part, change)))
            fired += 0 if change is None else int(part.reached(change).sum())
            if time.monotonic() - reported > REPORT_SECONDS and part.stop < self.n:
                yield {"progress": self._report(part.stop, judged_before, judged_after)}
                reported = time.monotonic()
            else:
                yield None
        if change is not None and not fired:
            raise WorkbenchError(
                "the change never took place", expected="a real token at these positions in some sequence", got="none"
            )
        yield {"result": self._report(self.n, judged_before, judged_after)}

    def _report(self, done: int, before: list[Tensor], after: list[Tensor]) -> Line:
        both = torch.stack([torch.cat(before, dim=1), torch.cat(after, dim=1)]).double().cpu().numpy()
        accuracy, loss, ties = both[:, 0].T, both[:, 1].T, both[1, 2]
        means = {"accuracy": _means(accuracy, (0.0, 1.0)), "loss": _means(loss, None)}
        sides = [{name: found[side] for name, found in means.items()} for side in (0, 1)]
        return {"done": done, "total": self.n, "before": sides[0], "after": sides[1], "ties": int(ties.sum())}

    def _rows(self, part: Sources, change: Intervention) -> Tensor:
        """Logits at the scored positions under a change, ``[row d_vocab]``."""
        return (
            self._hooked(part, change)[part.batch.scored] if change.frozen_patterns else self._restarted(part, change)
        )

    def _restarted(self, part: Sources, change: Intervention) -> Tensor:
        return torch.cat([made.logits[0] for made in evaluate(self.model, part.batch, [part.puts(change)])])

    def _hooked(self, part: Sources, change: Intervention) -> Tensor:
        with intervene(self.model, part.edits(change)):
            return self.model(part.batch.tokens, part.batch.mask, path="explicit")


def _kept(kept: OrderedDict[Hashable, T], key: Hashable, most: int, make: Callable[[], T]) -> T:
    """What is kept under a key, made if it is not there; the one that was used longest ago goes."""
    if key not in kept:
        kept[key] = make()
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
    return kept[key]


def _cut(reference: ReferenceSet, t: int) -> ReferenceSet:
    """The means at the first ``t`` positions; a longer sequence keeps all, and is refused where they are used."""
    if not reference.per_position or t >= len(reference.filled):
        return reference
    return ReferenceSet(
        reference.task_name, reference.split, reference.seed, reference.size, True,
        tuple(mean[:t] for mean in reference.mean_z), reference.filled[:t],
        tuple(mean[:t] for mean in reference.mean_mlp),
    )  # fmt: skip


def _means(values: np.ndarray, bounds: tuple[float, float] | None) -> list[Mapping[str, float | None]]:
    """Mean and interval of each column, None where it is not finite."""
    means, low, high = values.mean(axis=0), *np.full((2, values.shape[1]), np.nan)
    good = np.isfinite(values).all(axis=0)
    if good.any():
        low[good], high[good] = mean_intervals(values[:, good], bounds=bounds)
    return [
        {"value": _finite(m), "low": _finite(a), "high": _finite(b)} for m, a, b in zip(means, low, high, strict=True)
    ]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _packed(values: Tensor) -> dict[str, str]:
    """Little-endian float32 in base64."""
    plain = np.ascontiguousarray(values.detach().float().cpu().numpy(), dtype="<f4").tobytes()
    return {"f32": base64.b64encode(plain).decode("ascii")}

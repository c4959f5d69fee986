"""What heads do on a probe: four scores (five on a task's own lines) with chance and interval, the sets chosen by them,
and the impostors.

Scores are means over queries, then over sequences; intervals are bootstraps over sequences. Patterns are reduced as
they arise: at no time does more than one layer's pattern of one chunk of sequences exist.

Axes: ``batch query_pos key_pos head d_head``; per-sequence scores are ``[n_sequences n_layers n_heads]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from workbench import pattern_scores
from workbench.components import Head, all_heads
from workbench.errors import WorkbenchError, unknown_name
from workbench.hooks import Edit, intervene
from workbench.model.transformer import Transformer
from workbench.pattern_scores import duplicate_token, prefix_matching, previous_token
from workbench.probes import Probe, impostor_periods, repeated_blocks, varying_periods
from workbench.statistics import mean_intervals
from workbench.task import Vocabulary
from workbench.work import counting

__all__ = [
    "KEYS",
    "SCORES",
    "HeadScores",
    "HeadSets",
    "ImpostorRow",
    "duplicate_token",
    "impostor_check",
    "matching",
    "prefix_matching",
    "previous_token",
    "score_heads",
    "select_sets",
]

TARGETS = {
    "previous_token_score": pattern_scores.previous_targets,
    "duplicate_token_score": pattern_scores.duplicate_targets,
    "prefix_matching_score": pattern_scores.prefix_targets,
}
SCORES = (*TARGETS, "copying_score")

KEYS = "induction_key_score"
"""On a task's own sequences: attention to the keys that the task names as a perfect induction head's, at scored
queries, summed. It takes the part of prefix matching where a token alone does not say which earlier place is meant."""

INDUCTION_RATIO = 3.0
"""Prefix matching from this many times chance on varying periods: an induction head."""
PREVIOUS_RATIO = 2.0
"""A previous-token score from this many times chance, below an induction head: a previous-token head."""
FEW_PERIODS = 5
"""With fewer varying periods than this from 6 to 20, the check for impostors draws on all that fit."""

IMPOSTOR_RATIO = 1.5
"""Prefix matching below this many times chance on varying periods, though high on a fixed one: position alone."""


@dataclass(frozen=True)
class HeadScores:
    """The four scores of every head.

    Attributes:
        per_sequence: score name -> ``[n_sequences n_layers n_heads]``, in [0, 1] (copying: from -1 / (V - 1)).
        chance: score name -> what uniform attention scores (copying: an even spread over the vocabulary, 0).
        left_out: score name -> number of queries, over all sequences, without a target (copying: without a key behind
            the begin token).
        d_vocab: the vocabulary's size, which bounds copying from below.
    """

    per_sequence: Mapping[str, np.ndarray]
    chance: Mapping[str, float]
    left_out: Mapping[str, int]
    d_vocab: int

    def _values(self, name: str) -> np.ndarray:
        if name not in self.per_sequence:
            raise unknown_name("head score", name, self.per_sequence)
        return self.per_sequence[name]

    def mean(self, name: str) -> np.ndarray:
        """The score of every head, ``[n_layers n_heads]``."""
        return self._values(name).mean(axis=0)

    def interval(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Ends (low, high) of the 95 % interval over sequences, each ``[n_layers n_heads]``."""
        lowest = -1 / max(1, self.d_vocab - 1) if name == "copying_score" else 0.0
        return mean_intervals(self._values(name), bounds=(lowest, 1.0))

    def frame(self) -> pd.DataFrame:
        """One row a score and head: head, score, value, low, high, chance."""
        rows = []
        for name in self.per_sequence:
            value, (low, high) = self.mean(name), self.interval(name)
            rows += [
                (str(h), name, float(value[h]), float(low[h]), float(high[h]), self.chance[name])
                for h in all_heads(*value.shape)
            ]
        return pd.DataFrame(rows, columns=["head", "score", "value", "low", "high", "chance"])


def score_heads(model: Transformer, vocabulary: Vocabulary, probe: Probe, *, chunk_tokens: int = 4096) -> HeadScores:
    """Score every head on a probe, in a stream.

    Args:
        vocabulary: the model's. probe: sequences without padding, each with a repeated token; the begin token exactly
            once, at position 0, where the vocabulary has one. chunk_tokens: about how many tokens run at once; it does
            not change the result.

    Raises:
        WorkbenchError: a probe that breaks one of these, or is longer than the model's context.
    """
    _check(vocabulary, probe)
    names = (*TARGETS, *([] if probe.keys is None else [KEYS]))
    parts: dict[str, list[np.ndarray]] = {name: [] for name in (*names, "copying_score")}
    chances: dict[str, list[Tensor]] = {name: [] for name in names}
    left_out = dict.fromkeys(parts, 0) | {"copying_score": len(probe) * probe.bos}
    size = max(1, chunk_tokens // probe.tokens.shape[1])
    device = model.unembed.W_U.device
    with counting(len(probe)) as step:
        for start in range(0, len(probe), size):
            tokens = probe.tokens[start : start + size].to(device)
            targets = {name: find(tokens, probe.bos) for name, find in TARGETS.items()}
            if probe.keys is not None:
                targets[KEYS] = probe.keys[start : start + size].to(device)
            for name, found in targets.items():
                _require_targets(name, found)
                chances[name].append(pattern_scores.chance(found))
                left_out[name] += int((~found.any(dim=2)).sum())
            scored = _score_chunk(model, tokens, targets, probe.bos)
            for name, by_layer in scored.items():
                parts[name].append(torch.stack(by_layer, dim=1).double().cpu().numpy())
            step(len(tokens))
    chance = {name: float(torch.cat(values).double().mean()) for name, values in chances.items()}
    return HeadScores(
        {name: np.concatenate(values) for name, values in parts.items()},
        chance | {"copying_score": 0.0},
        left_out,
        len(vocabulary),
    )


def _score_chunk(
    model: Transformer, tokens: Tensor, targets: Mapping[str, Tensor], bos: bool
) -> dict[str, list[Tensor]]:
    """Score name -> one ``[batch head]`` a layer. Only the values of the layer at work are kept, to weigh them."""
    scored: dict[str, list[Tensor]] = {name: [] for name in (*targets, "copying_score")}
    value: list[Tensor] = []

    def keep(v: Tensor) -> Tensor:
        value[:] = [v]
        return v

    def reduce(layer: int) -> Callable[[Tensor], Tensor]:
        attn = model.blocks[layer].attn

        def run(pattern: Tensor) -> Tensor:
            for name, found in targets.items():
                scored[name].append(pattern_scores.attention_to(pattern, found)[0])
            to_logits = attn.W_O.float() @ model.unembed.W_U.float()
            share = pattern_scores.copied_share(value.pop() - attn.b_V, tokens, to_logits)
            scored["copying_score"].append(pattern_scores.copying(pattern, share, bos))
            return pattern

        return run

    edits = []
    for layer in range(model.config.n_layers):
        edits.append(Edit(f"blocks.{layer}.attn.hook_v", keep, f"head scores, values of layer {layer}"))
        edits.append(Edit(f"blocks.{layer}.attn.hook_pattern", reduce(layer), f"head scores, layer {layer}"))
    with torch.no_grad(), intervene(model, edits):
        model(tokens)
    return scored


def _check(vocabulary: Vocabulary, probe: Probe) -> None:
    if not bool(probe.mask.all()):
        raise WorkbenchError("a padded probe cannot be scored", expected="real tokens everywhere", got="padding")
    if probe.bos != (vocabulary.bos is not None):
        raise WorkbenchError(
            "probe and vocabulary differ over the begin token", expected=f"id {vocabulary.bos}", got=f"bos={probe.bos}"
        )
    begins = probe.tokens == (-1 if vocabulary.bos is None else vocabulary.bos)
    if probe.bos and not (bool(begins[:, 0].all()) and int(begins.sum()) == len(probe)):
        raise WorkbenchError(
            "the begin token is misplaced",
            expected="exactly once in each sequence, at position 0",
            got=f"{int(begins[:, 0].sum())} of {len(probe)} sequences begin with it, {int(begins.sum())} in all",
        )


def _require_targets(name: str, found: Tensor) -> None:
    without = int((~found.flatten(1).any(dim=1)).sum())
    if without:
        raise WorkbenchError(
            f"a probe cannot show a {name}", expected="sequences that repeat a token", got=f"{without} that do not"
        )


@dataclass(frozen=True)
class HeadSets:
    """The heads chosen: ``s0`` look at the previous token, ``s1`` match prefixes (induction heads)."""

    s0: tuple[Head, ...]
    s1: tuple[Head, ...]


def matching(scores: HeadScores) -> str:
    """The score that says whether a head inducts: by the keys that the task names, else by prefix matching."""
    return KEYS if KEYS in scores.per_sequence else "prefix_matching_score"


def select_sets(scores: HeadScores) -> HeadSets:
    """Choose the sets from scores on varying periods (of a split that is not the one they are tested on).

    S1: prefix matching (on a task's own sequences: attention to the keys that it names) at least 3 x chance. S0: a
    previous-token score at least 2 x chance, in layers below S1's highest.
    """
    match = matching(scores)
    prefix, previous = scores.mean(match), scores.mean("previous_token_score")
    heads = all_heads(*prefix.shape)
    s1 = tuple(h for h in heads if prefix[h] >= INDUCTION_RATIO * scores.chance[match])
    top = max((h.layer for h in s1), default=0)
    enough = PREVIOUS_RATIO * scores.chance["previous_token_score"]
    return HeadSets(tuple(h for h in heads if h.layer < top and previous[h] >= enough), s1)


@dataclass(frozen=True)
class ImpostorRow:
    """Whether a head that seems to induct on a fixed period does so by position alone.

    Attributes:
        fixed_ratio, varying_ratio: prefix matching over chance, on the fixed period and on the varying ``periods``.
        flagged: at least 3 on the fixed period and below 1.5 on the varying ones.
    """

    head: Head
    fixed_ratio: float
    varying_ratio: float
    fixed_period: int
    periods: tuple[int, ...]
    flagged: bool


def impostor_check(
    model: Transformer,
    vocabulary: Vocabulary,
    stream: torch.Generator,
    *,
    fixed_period: int | None = None,
    n: int = 128,
) -> list[ImpostorRow]:
    """Compare every head's prefix matching on a fixed period and on varying ones that divide no multiple of it.

    Args:
        fixed_period: the one that the model was trained on; None takes 13, or the longest below that fits.
        n: sequences of each kind, drawn from ``stream``.

    Raises:
        WorkbenchError: a period that does not fit, or a context in which no varying period tells the two apart.
    """
    n_ctx, n_ordinary = model.config.n_ctx, len(vocabulary.ordinary)
    candidates = varying_periods(n_ctx, n_ordinary)
    fixed = min(13, candidates[-1]) if fixed_period is None else fixed_period
    periods = impostor_periods(fixed, n_ctx, candidates)
    if len(periods) < FEW_PERIODS:
        # In a long context most short periods divide some multiple of the fixed one: longer ones tell them apart.
        candidates = varying_periods(n_ctx, n_ordinary, high=n_ctx)
        periods = impostor_periods(fixed, n_ctx, candidates)
    if not periods:
        raise WorkbenchError(
            f"no period tells a head made for period {fixed} from an induction head",
            expected=f"one of {candidates[0]} to {candidates[-1]} that divides no multiple of it below {n_ctx}",
            got="none",
        )

    def ratio(of: tuple[int, ...]) -> np.ndarray:
        scores = score_heads(model, vocabulary, repeated_blocks(vocabulary, n, n_ctx, of, stream))
        return scores.mean("prefix_matching_score") / scores.chance["prefix_matching_score"]

    on_fixed, on_varying = ratio((fixed,)), ratio(periods)
    return [
        ImpostorRow(
            head,
            float(on_fixed[head]),
            float(on_varying[head]),
            fixed,
            periods,
            bool(on_fixed[head] >= INDUCTION_RATIO and on_varying[head] < IMPOSTOR_RATIO),
        )
        for head in all_heads(*on_fixed.shape)
    ]

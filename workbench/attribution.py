"""What each part writes towards the answer directly, and what the residual stream already says on its way up.

*Direct logit attribution* (Elhage et al. 2021) takes the final residual stream apart into everything that was written
into it and projects each term on the direction of an answer, the final norm's scale held at its clean value. *Logit
lens* (nostalgebraist 2020) applies the final norm and the unembedding in the middle of the stream.

Both are read off one explicit pass in float64, in chunks of whole sequences, at the scored positions; values are means
over a sequence's scored positions, so that intervals sample sequences. Both end in the model's own logits, and are
errors where they do not.

Axes: ``batch pos d_model d_vocab``; ``n`` sequences; ``at`` scored positions of a chunk, all sequences in a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call

from workbench.checks import deviation
from workbench.components import Head
from workbench.errors import WorkbenchError, unknown_name
from workbench.hooks import capture
from workbench.metrics import require_answers
from workbench.model.blocks import EPS
from workbench.model.transformer import Transformer
from workbench.reference import CHUNK_TOKENS
from workbench.statistics import mean_intervals
from workbench.task import Batch

TOLERANCE = 1e-5
"""Largest deviation from the model's own logits, relative to max(1, the largest value compared with)."""

SCALES = ("own", "final")
"""Whose scale a norm in mid-stream divides by: that of the stream there, or the clean one at the end."""

_FINAL = "ln_final.hook_scale"


@dataclass(frozen=True, eq=False)
class LogitAttribution:
    """The answer's logit (or a difference of two) as a sum.

    Attributes:
        quantity: what is taken apart, as words for a sentence.
        terms: the names: "embed", "pos_embed", then for each layer its heads ("L0.H1", without their share of b_V),
            "L0.b_V" (the value biases of all its heads through W_O), "L0.b_O", "L0.mlp" (bias included); at last the
            shift of the final norm, "ln_final.b". Only terms that the model has.
        values: of each term, mean over a sequence's scored positions, in logits.
        total: the model's own value of the quantity, likewise.
        deviation: of the sum of all terms from it, largest over scored positions, relative to max(1, largest value).
    """

    quantity: str
    terms: tuple[str, ...]
    values: Float[np.ndarray, "n term"]
    total: Float[np.ndarray, " n"]
    deviation: float

    def of(self, term: str | Head) -> Float[np.ndarray, " n"]:
        """One term's values, by name or Head; an unknown name is an error with the nearest ones."""
        if str(term) not in self.terms:
            raise unknown_name("term", str(term), self.terms)
        return self.values[:, self.terms.index(str(term))]

    def frame(self) -> pd.DataFrame:
        """Rows term, value, low, high, n, in the order of ``terms``; the last, "sum", is the quantity itself."""
        columns = np.column_stack([self.values, self.total])
        low, high = mean_intervals(columns)
        cells = {"term": [*self.terms, "sum"], "value": columns.mean(axis=0), "low": low, "high": high}
        return pd.DataFrame(cells | {"n": len(columns)})


@dataclass(frozen=True, eq=False)
class LogitLens:
    """What the unembedding reads at each stop of the residual stream.

    Attributes:
        scale: whose scale the final norm uses there (without effect on a model without a final norm).
        stops: "embed" (what enters the first block), then "L0.mid" (between attention and MLP, where there is one),
            "L0" (what leaves block 0), and so on. depth: blocks passed at each, 0 to ``n_layers``.
        accuracy: share of a sequence's scored positions at which the answer comes first.
        log_prob: the answer's log-probability in nats, mean over a sequence's scored positions.
        deviation: of the last stop's logits from the model's, relative to max(1, largest logit).
    """

    scale: str
    stops: tuple[str, ...]
    depth: tuple[float, ...]
    accuracy: Float[np.ndarray, "n stop"]
    log_prob: Float[np.ndarray, "n stop"]
    deviation: float


def direct_logit_attribution(
    model: Transformer,
    batch: Batch,
    *,
    incorrect: Int[Tensor, "batch pos"] | None = None,
    centred: bool = True,
    chunk: int | None = None,
) -> LogitAttribution:
    """Every term of the final residual stream on the direction of the answer (Elhage et al. 2021).

    A term t counts ``((t - mean t) / s * w) . u`` with the final norm's gain w and its clean scale s at that position
    (``t . u`` without a norm), where u is W_U's column of the target, minus the mean column or that of the other
    answer. A head's term is ``(z - b_V) W_O``: patterns sum to 1, so b_V stands in z as it is.

    Args:
        batch: its targets are the answers. incorrect: ids of other answers, read at the scored positions: then the
            logit difference, correct minus incorrect (Wang et al. 2022), is taken apart.
        centred: without ``incorrect``, the answer's logit minus the mean over the vocabulary (softmax ignores that
            shift); False for the logit as it is. chunk: sequences at once; None for about 4,096 tokens.

    Raises:
        WorkbenchError: a post-norm model, whose residual stream is no sum of writes; no answer where one is scored;
            a sum that misses the model's own logits by more than ``TOLERANCE``.
    """
    config = model.config
    if config.norm == "post":
        raise WorkbenchError(
            "direct logit attribution is not applicable to a post-norm model",
            expected="a residual stream that is a sum of writes (norm pre or none)",
            got="norm post",
        )
    require_answers(batch, batch.targets, config.d_vocab, "targets")
    if incorrect is not None:
        require_answers(batch, incorrect, config.d_vocab, "incorrect answers")
    weights = _in_float64(model)
    kept, off = [], []
    with torch.no_grad():
        for start, part in _chunks(batch, chunk):
            other = None if incorrect is None else incorrect[start : start + len(part)][part.scored]
            answers = _Answers(part.targets[part.scored], other, centred)
            terms, own = _terms(model, weights, part, answers)
            off.append(deviation(torch.stack(list(terms.values())).sum(0), own))
            kept.append(_sequence_means(torch.stack([*terms.values(), own], dim=1), part))
    worst = _largest(off, "the terms of a logit do not add up to it")
    values = torch.cat(kept).cpu().numpy()
    return LogitAttribution(answers.quantity, tuple(terms), values[:, :-1], values[:, -1], worst)


def logit_lens(model: Transformer, batch: Batch, *, scale: str = "own", chunk: int | None = None) -> LogitLens:
    """The unembedding applied at every stop of the residual stream (nostalgebraist 2020).

    Args:
        scale: own norms each stop by its own scale; final divides by the clean scale of the end instead, at the same
            position. Models without a final norm (norm none or post) have none to choose. chunk: as above.

    Raises:
        WorkbenchError: an unknown scale; no answer where one is scored; a last stop that misses the model's own logits
            by more than ``TOLERANCE``.
    """
    if scale not in SCALES:
        raise unknown_name("scale of a logit lens", scale, SCALES)
    config = model.config
    require_answers(batch, batch.targets, config.d_vocab, "targets")
    points = {"embed": "blocks.0.hook_resid_pre"}
    depth = [0.0]
    for layer in range(config.n_layers):
        if config.d_mlp:
            points[f"L{layer}.mid"] = f"blocks.{layer}.hook_resid_mid"
            depth.append(layer + 0.5)
        points[f"L{layer}"] = f"blocks.{layer}.hook_resid_post"
        depth.append(layer + 1.0)
    weights, final = _in_float64(model), [_FINAL] if config.norm == "pre" else []
    kept, off = [], []
    with torch.no_grad():
        for _, part in _chunks(batch, chunk):
            logits, seen = _explicit(model, weights, part, [*points.values(), *final])
            clean = seen[final[0]][part.scored] if final and scale == "final" else None
            target = part.targets[part.scored][:, None]
            rows = []
            for point in points.values():
                at = _unembed(seen[point][part.scored], weights, clean)
                right = (at.argmax(dim=-1) == target[:, 0]).to(at.dtype)
                rows.append(torch.stack([right, at.log_softmax(dim=-1).gather(1, target)[:, 0]], dim=1))
            off.append(deviation(at, logits[part.scored]))
            kept.append(_sequence_means(torch.stack(rows, dim=1), part))
    worst = _largest(off, "the logit lens does not end in the model's own logits")
    values = torch.cat(kept).cpu().numpy()
    return LogitLens(scale, tuple(points), tuple(depth), values[..., 0], values[..., 1], worst)


@dataclass(frozen=True, eq=False)
class _Answers:
    """The answers at the scored positions of a chunk, and what they are compared with."""

    correct: Int[Tensor, " at"]
    incorrect: Int[Tensor, " at"] | None
    centred: bool

    @property
    def quantity(self) -> str:
        if self.incorrect is not None:
            return "the answer's logit minus that of the other answer"
        return "the answer's logit minus the mean over the vocabulary" if self.centred else "the answer's logit"

    def contrast(self, rows: Float[Tensor, "at d_vocab"]) -> Float[Tensor, " at"]:
        """The quantity, from logits."""
        own = rows.gather(1, self.correct[:, None])[:, 0]
        if self.incorrect is not None:
            return own - rows.gather(1, self.incorrect[:, None])[:, 0]
        return own - rows.mean(dim=1) if self.centred else own

    def direction(self, unembed: Float[Tensor, "d_model d_vocab"]) -> Float[Tensor, "at d_model"]:
        """The direction in the (normed) residual stream that the quantity is read along."""
        columns = unembed.T
        if self.incorrect is not None:
            return columns[self.correct] - columns[self.incorrect]
        return columns[self.correct] - columns.mean(dim=0) if self.centred else columns[self.correct]


def _terms(
    model: Transformer, weights: dict[str, Tensor], batch: Batch, answers: _Answers
) -> tuple[dict[str, Tensor], Tensor]:
    """Each term at each scored position, ``[at]``, and the model's own value of the quantity there."""
    config = model.config
    names = {"embed": "hook_embed"}
    if config.positions in ("learned", "sinusoidal"):
        names["pos_embed"] = "hook_pos_embed"
    z = [f"blocks.{layer}.attn.hook_z" for layer in range(config.n_layers)]
    mlp = [f"blocks.{layer}.hook_mlp_out" for layer in range(config.n_layers)] if config.d_mlp else []
    final = [_FINAL] if config.norm == "pre" else []
    logits, seen = _explicit(model, weights, batch, [*names.values(), *z, *mlp, *final])
    direction = answers.direction(weights["unembed.W_U"])
    read = direction
    if config.norm == "pre":
        # The norm is linear once its scale is held: what it does to a term is done to the direction instead, once.
        gained = direction * weights["ln_final.w"]
        read = (gained - gained.mean(dim=1, keepdim=True)) / seen[_FINAL][batch.scored]
    terms = {name: (seen[point][batch.scored] * read).sum(dim=1) for name, point in names.items()}
    for layer in range(config.n_layers):
        w_o, b_v, b_o = (weights[f"blocks.{layer}.attn.{name}"] for name in ("W_O", "b_V", "b_O"))
        through = torch.einsum("hkd,ad->ahk", w_o, read)
        by_head = ((seen[z[layer]][batch.scored] - b_v) * through).sum(dim=2)
        terms |= {str(Head(layer, head)): value for head, value in enumerate(by_head.unbind(1))}
        terms[f"L{layer}.b_V"] = (b_v * through).sum(dim=(1, 2))
        terms[f"L{layer}.b_O"] = read @ b_o
        if config.d_mlp:
            terms[f"L{layer}.mlp"] = (seen[mlp[layer]][batch.scored] * read).sum(dim=1)
    if config.norm == "pre":
        terms["ln_final.b"] = direction @ weights["ln_final.b"]
    return terms, answers.contrast(logits[batch.scored])


def _unembed(
    x: Float[Tensor, "at d_model"], weights: Mapping[str, Tensor], scale: Float[Tensor, "at 1"] | None
) -> Float[Tensor, "at d_vocab"]:
    """Final norm, where there is one, and unembedding; ``scale`` None for that of ``x`` itself."""
    if "ln_final.w" in weights:
        x = x - x.mean(dim=1, keepdim=True)
        own = (x.pow(2).mean(dim=1, keepdim=True) + EPS).sqrt() if scale is None else scale
        x = x / own * weights["ln_final.w"] + weights["ln_final.b"]
    return x @ weights["unembed.W_U"]


def _in_float64(model: Transformer) -> dict[str, Tensor]:
    """The model's weights and tables as they are now, in float64: sums that cancel then show no rounding."""
    held = [*model.named_parameters(), *model.named_buffers()]
    return {name: t.detach().double() for name, t in held if t.is_floating_point()}


def _explicit(
    model: Transformer, weights: dict[str, Tensor], batch: Batch, names: Sequence[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits and the activations at these hook points, in float64; the model is left as it is."""
    with capture(model, names) as seen:
        logits = functional_call(model, weights, (batch.tokens, batch.mask), {"path": "explicit"})
    return logits, seen


def _chunks(batch: Batch, chunk: int | None) -> Iterator[tuple[int, Batch]]:
    """Where each chunk starts, and the chunk."""
    if chunk is not None and chunk < 1:
        raise WorkbenchError("a chunk cannot be used", expected="at least 1 sequence", got=chunk)
    size = chunk or max(1, CHUNK_TOKENS // batch.tokens.shape[1])
    return zip(range(0, len(batch), size), batch.chunks(size), strict=True)


def _sequence_means(values: Float[Tensor, "at ..."], batch: Batch) -> Float[Tensor, "batch ..."]:
    """Values at scored positions as means by sequence."""
    count = batch.scored.sum(dim=1)
    sums = values.new_zeros((len(batch), *values.shape[1:]))
    sums.index_add_(0, batch.scored.nonzero()[:, 0], values)
    return sums / count.reshape(-1, *[1] * (values.ndim - 1))


def _largest(deviations: list[float], problem: str) -> float:
    """The largest deviation, not a number if one is; above the tolerance it is an error."""
    worst = float(np.max(deviations))
    if not worst <= TOLERANCE:
        raise WorkbenchError(problem, expected=f"a deviation of at most {TOLERANCE:g}", got=f"{worst:.2g}")
    return worst

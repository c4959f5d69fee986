"""Figures and tables of the induction analysis, from what was measured: scores, attention, circuits, composition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from analyses._heads import by_head
from analyses._induction_study import Study
from workbench.components import Head, part_names
from workbench.findings import Attention, Cell, Column, Finding, Heatmap, Notice, Panel, Table
from workbench.head_scores import KEYS
from workbench.hooks import capture
from workbench.pattern_array import most_tokens
from workbench.rng import stream
from workbench.weight_circuits import CompositionRow, composition, full_ov, full_qk, ov_eigenvalue_copying

HEADS, LOOK, CIRCUITS = "Which heads", "Where they look", "What the weights say"
SHOWN_SEQUENCES, SHOWN_HEADS, SHOWN_VOCABULARY = 2, 16, 64
LABELS = {
    "previous_token_score": "previous token",
    "duplicate_token_score": "duplicate token",
    "prefix_matching_score": "prefix matching",
    KEYS: "induction keys",
    "copying_score": "copying",
}


def _rows(values: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(v) for v in row) for row in values)


def score_findings(study: Study) -> list[Finding]:
    """The heatmap layers x heads of all scores on one scale, and the table with intervals and the impostor check."""
    test, config = study.test, study.subject.config
    panels = []
    for name in test.per_sequence:
        low, high = test.interval(name)
        panels.append(
            Panel(
                title=LABELS[name],
                note=f"chance {test.chance[name]:.3f}",
                values=_rows(test.mean(name)),
                low=_rows(low),
                high=_rows(high),
            )
        )
    chosen = (
        (list(test.per_sequence).index("previous_token_score"), study.sets.s0),
        (list(test.per_sequence).index(study.match), study.sets.s1),
    )
    n = len(test.per_sequence["copying_score"])
    heatmap = by_head(
        config,
        id="induction.head_scores",
        section=HEADS,
        title="Scores of every head",
        caption=f"Means over {n} sequences ({study.scored_on}), other than those on which heads were chosen. "
        f"Outlined: the heads of S0 (previous token) and S1 ({LABELS[study.match]}).",
        panels=tuple(panels),
        unit="score",
        vmin=0.0,
        vmax=1.0,
        marks=tuple((panel, h.layer, h.head) for panel, heads in chosen for h in heads),
    )
    return [heatmap, _head_table(study), *_left_out(study)]


def _head_table(study: Study) -> Table:
    model, test = study.subject.own, study.test
    columns = [Column(key="head", label="head"), Column(key="set", label="set")]
    for name in test.per_sequence:
        key = name.removesuffix("_score")
        columns.append(Column(key=key, label=LABELS[name], digits=2, low=f"{key}_low", high=f"{key}_high"))
    columns += [
        Column(
            key="eigenvalue_copying", label="OV eig.", digits=2, help="OV eigenvalue copying, from weights, −1 to 1"
        ),
        Column(key="write_norm", label="‖W_O‖", digits=2, help="size of the head's output matrix"),
        Column(key="fixed_ratio", label="fixed", digits=1, help="prefix matching over chance, fixed period"),
        Column(key="varying_ratio", label="varying", digits=1, help="prefix matching over chance, varying periods"),
    ]
    intervals = {name: test.interval(name) for name in test.per_sequence}
    impostors = {row.head: row for row in study.impostors}
    rows: list[dict[str, Cell]] = []
    for h in study.subject.heads:
        row: dict[str, Cell] = {"head": str(h), "set": _set(study, h)}
        for name in test.per_sequence:
            key = name.removesuffix("_score")
            low, high = intervals[name]
            row |= {key: float(test.mean(name)[h]), f"{key}_low": float(low[h]), f"{key}_high": float(high[h])}
        row |= {
            "eigenvalue_copying": ov_eigenvalue_copying(model, h),
            "write_norm": float(model.blocks[h.layer].attn.W_O[h.head].detach().norm()),
            "fixed_ratio": None,
            "varying_ratio": None,
            "positional": None,
        }
        if h in impostors:
            at = impostors[h]
            row |= {"fixed_ratio": at.fixed_ratio, "varying_ratio": at.varying_ratio}
            row["positional"] = at.flagged
            if at.flagged:
                row["set"] = f"{row['set']} positional".strip()
        rows.append(row)
    tested = study.impostors[0] if study.impostors else None
    how = (
        f"Positional check: prefix matching over chance on a fixed period of {tested.fixed_period} and on "
        f"{len(tested.periods)} varying ones that divide no multiple of it."
        if tested
        else f"The positional check does not apply: {study.not_checked}."
    )
    return Table(
        id="induction.heads",
        section=HEADS,
        title="Every head in numbers",
        caption=f"Scores with 95 % intervals over sequences; eigenvalues and norms from weights alone. {how}",
        columns=tuple(columns),
        rows=tuple(rows),
        marked=tuple(i for i, h in enumerate(study.subject.heads) if h in study.circuit),
    )


def _set(study: Study, head: Head) -> str:
    return " ".join(name for name, heads in (("S0", study.sets.s0), ("S1", study.sets.s1)) if head in heads)


def _left_out(study: Study) -> list[Finding]:
    counts = ", ".join(f"{LABELS[name]} {study.test.left_out[name]:,}" for name in study.test.per_sequence)
    begin = "The begin token stands exactly once, at position 0; it is never a target."
    text = f"Queries without a target are left out of a score: {counts}. "
    return [
        Notice(
            id="induction.left_out",
            section=HEADS,
            title="What the scores leave out",
            text=text + (begin if study.subject.vocabulary.bos is not None else "The vocabulary has no begin token."),
        )
    ]


def attention_findings(study: Study) -> list[Finding]:
    """Patterns of all heads (of the circuit's, where there are many) over a few test sequences, as long as a page shows
    every weight of (for 16 heads 446 tokens)."""
    model, vocabulary = study.subject.own, study.subject.vocabulary
    heads = study.subject.heads if len(study.subject.heads) <= SHOWN_HEADS else study.circuit[:SHOWN_HEADS]
    length = min(study.batch.tokens.shape[1], most_tokens(len(heads)))
    cut = [f"the first {length} tokens"] if length < study.batch.tokens.shape[1] else []
    cut += [f"{len(heads)} of the {len(study.subject.heads)} heads"] if len(heads) < len(study.subject.heads) else []
    found: list[Finding] = []
    if not heads:
        return found
    shown = study.batch[:SHOWN_SEQUENCES]
    points = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    with torch.no_grad(), capture(model, points) as cache:
        model(shown.tokens, shown.mask, path="explicit")
    for i in range(len(shown)):
        patterns = [cache[f"blocks.{h.layer}.attn.hook_pattern"][i, h.head, :length, :length] for h in heads]
        found.append(
            Attention(
                id=f"induction.attention_{i + 1}",
                section=LOOK,
                title=f"Attention over test sequence {i + 1}",
                caption="Each row is a query, each column a key it looks at; rows sum to 1. "
                + (f"S0: {part_names(study.sets.s0)}. S1: {part_names(study.sets.s1)}." if study.circuit else "")
                + (f" Shown: {', '.join(cut)}." if cut else ""),
                tokens=tuple(vocabulary.decode(shown.tokens[i, :length])),
                patterns=torch.stack(patterns).cpu().numpy(),
                names=tuple(map(str, heads)),
            )
        )
    return found


def circuit_findings(study: Study) -> list[Finding]:
    """Token-to-token circuits of the heads that matter most, and composition of every pair with its null."""
    found: list[Finding] = []
    attention = study.subject.config.attention
    if study.sets.s1:
        top = max(study.sets.s1, key=lambda h: study.selection.mean(study.match)[h] * _strength(study, h))
        found.append(_ov(study, top))
        below = tuple(h for h in study.sets.s0 if h.layer < top.layer)
        if below and attention == "learned":
            found.append(_qk(study, top, below))
    if study.subject.config.n_layers > 1:
        found += _composition(study)
    return found


def _strength(study: Study, head: Head) -> float:
    return float(study.subject.own.blocks[head.layer].attn.W_O[head.head].detach().norm())


def _token_map(
    study: Study, id: str, title: str, caption: str, matrix: Tensor, row_title: str, column_title: str
) -> Heatmap:
    ids = study.subject.vocabulary.ordinary[:SHOWN_VOCABULARY]
    labels = tuple(study.subject.vocabulary.decode(list(ids)))
    values = matrix.detach().float().cpu().numpy()[np.ix_(ids, ids)]
    part = f" Shown: the first {len(ids)} ordinary tokens." if len(ids) < len(study.subject.vocabulary.ordinary) else ""
    wins = float((values.argmax(axis=1) == np.arange(len(ids))).mean())
    return Heatmap(
        id=id,
        section=CIRCUITS,
        title=title,
        caption=f"{caption} The diagonal is the largest of its row for {100 * wins:.0f} % of tokens.{part}",
        panels=(Panel(title="", values=_rows(values)),),
        row_labels=labels,
        column_labels=labels,
        row_title=row_title,
        column_title=column_title,
        kind="diverging",
        width="half",
    )


def _ov(study: Study, head: Head) -> Heatmap:
    matrix = full_ov(study.subject.own, head)
    return _token_map(
        study,
        "induction.ov_circuit",
        f"OV circuit of {head}: what looking at a token writes",
        "From weights: the logits that attending to a token (row) adds to every token (column), mean of each row taken "
        "off. A diagonal copies.",
        matrix - matrix.mean(dim=1, keepdim=True),
        "token attended to",
        "logit of token",
    )


def _qk(study: Study, head: Head, through: Sequence[Head]) -> Heatmap:
    config = study.subject.config
    offset = min(config.n_ctx - 1, _typical_distance(study))
    matrix = full_qk(study.subject.own, head, offset=offset, through=through)
    names = " and ".join(map(str, through))
    at = f" at a distance of {offset}" if config.positions in ("rotary", "alibi") else ""
    return _token_map(
        study,
        "induction.qk_circuit",
        f"QK circuit of {head} through {names}: which predecessor it looks for",
        f"From weights: the attention score of a query token (row) for a key{at} whose predecessor is a token "
        f"(column), as written there by {names}; mean of each row taken off. A diagonal: it looks for what followed "
        "the query's own token.",
        matrix - matrix.mean(dim=1, keepdim=True),
        "query token",
        "token before the key",
    )


def _typical_distance(study: Study) -> int:
    """How far back an induction key stands: on repeated blocks one less than the middle period, else the mean."""
    if study.periods:
        return study.periods[len(study.periods) // 2] - 1
    _, query, key = study.batch.key_masks["induction"].nonzero(as_tuple=True)
    return round(float((query - key).float().mean()))


def _composition(study: Study) -> list[Finding]:
    rows = composition(study.subject.own, stream=stream(study.subject.seed, "induction", "composition"))
    kinds = [k for k in ("K", "Q", "V") if any(r.kind == k for r in rows)]
    config = study.subject.config
    senders = [h for h in study.subject.heads if h.layer < config.n_layers - 1]
    receivers = [h for h in study.subject.heads if h.layer > 0]
    whole = len(senders) <= SHOWN_HEADS
    if not whole:
        senders = [h for h in senders if h in study.sets.s0]
        receivers = [h for h in receivers if h in study.sets.s1]
    if not senders or not receivers:
        return []
    at = {(r.kind, r.sender, r.receiver): r for r in rows}

    def matrix(kind: str, value: Callable[[CompositionRow], float]) -> np.ndarray:
        return np.array(
            [[value(at[kind, s, r]) if (kind, s, r) in at else math.nan for r in receivers] for s in senders]
        )

    highest = max(r.null_high for r in rows)
    above = sum(r.value > r.null_high for r in rows)
    heatmap = Heatmap(
        id="induction.composition",
        section=CIRCUITS,
        title=f"Composition of {'every pair of heads' if whole else 'S0 with S1'}, from weights",
        caption="‖W_out W_in‖ / (‖W_out‖ ‖W_in‖) of the earlier head's OV with the later head's K, Q or V side. "
        f"Outlined: above 97.5 % of Gaussian matrices of the same shapes (at most {highest:.3f}); that holds for "
        f"{above} of the model's {len(rows)} pairs and sides, whatever their size. Which path matters is decided by "
        "cutting it (above).",
        panels=tuple(
            Panel(title=f"{kind} composition", values=_rows(matrix(kind, lambda r: r.value))) for kind in kinds
        ),
        row_labels=tuple(map(str, senders)),
        column_labels=tuple(map(str, receivers)),
        row_title="earlier head",
        column_title="later head",
        vmin=0.0,
        annotate=True,
        marks=tuple(
            (p, i, j)
            for p, kind in enumerate(kinds)
            for i, s in enumerate(senders)
            for j, r in enumerate(receivers)
            if (kind, s, r) in at and at[kind, s, r].value > at[kind, s, r].null_high
        ),
    )
    return [heatmap]

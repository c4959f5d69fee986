"""Findings as an induction report has them, for a model of 2 layers x 4 heads, and hostile ones of every kind."""

from __future__ import annotations

import dataclasses
import math
import random

from workbench.findings import (
    Answer,
    Attention,
    Claim,
    Column,
    Curve,
    Definition,
    Finding,
    Heatmap,
    Notice,
    Panel,
    Rule,
    Series,
    Span,
    Table,
)

HEADING = "repeated_tokens · run 3f9c2ab1 · seed 0 · 2 layers × 4 heads, attention only"
COMMAND = "workbench demo --out runs/induction --preset default --seed 0"
IDENTITY = {
    "run": "3f9c2ab17c0de4516b1c0e6a6ff40f2b9b0d5c1e8a77",
    "findings": "a01b77e0c2",
    "task": {
        "name": "repeated_tokens",
        "n_ctx": 48,
        "d_vocab": 65,
        "period": "varying",
        "period_min": 6,
        "period_max": 20,
    },
    "model": {
        "n_layers": 2,
        "n_heads": 4,
        "d_model": 64,
        "d_head": 32,
        "positions": "rotary",
        "norm": "pre",
        "d_mlp": 0,
    },
    "train": {"steps": 600, "lr": 0.003, "head_sparsity": 0.3},
    "seed": 0,
    "device": "cpu",
    "threads": 2,
    "versions": {"torch": "2.13.0", "transformer_lens": "4.3.0"},
}
SCRIPT = "</script><script>alert(1)</script>"
IMAGE = '<img src=x onerror="alert(2)">'
HOSTILE_TOKENS = (
    SCRIPT,
    IMAGE,
    "\n",
    "\t",
    " the",
    "the",
    "",
    "\x00",
    "$x^2$",
    "שלום",
    "مرحبا",
    "日本語",
    "👩‍👩‍👧‍👦",
    "é",
    "\u202eabc",
    "a b",
)
HEADS = tuple(f"L{layer}.H{head}" for layer in range(2) for head in range(4))


def _pattern(kind: str, period: int, n: int, noise: random.Random) -> tuple[tuple[float, ...], ...]:
    rows = []
    for q in range(n):
        weights = [noise.uniform(0.2, 1.0) / (q + 1) for _ in range(q + 1)]
        if kind == "previous" and q:
            weights[q - 1] += 9
        if kind == "induction":
            targets = range(q + 1 - period, 0, -period)
            for k in targets:
                weights[k] += 12
            if q < period:
                weights[0] += 6
        total = sum(weights)
        rows.append(tuple([w / total for w in weights] + [0.0] * (n - q - 1)))
    return tuple(rows)


def attention(name: str = "induction.patterns", n: int = 32, period: int = 9) -> Attention:
    noise = random.Random(name)
    block = [chr(97 + i) for i in noise.sample(range(26), period)]
    tokens = tuple(["BOS"] + [block[i % period] for i in range(n - 1)])
    kinds = {"L0.H2": "previous", "L1.H1": "induction"}
    patterns = tuple(_pattern(kinds.get(h, "flat"), period, n, noise) for h in HEADS)
    return Attention(
        id=name,
        title="L0.H2 looks one token back, L1.H1 at what followed last time",
        caption=f"Attention patterns of all heads on one held-out sequence with period {period}. Rows are queries.",
        section="What the heads look at",
        tokens=tokens,
        patterns=patterns,
        names=HEADS,
    )


def claims() -> list[Claim]:
    def claim(name: str, statement: str, value: float | None, low: float | None, high: float | None, **more) -> Claim:
        return Claim(
            id=f"induction.{name}", title=statement, statement=statement, value=value, low=low, high=high, **more
        )

    mean = "mean ablation, per position, over 512 training sequences (7be1)"
    return [
        claim(
            "loss_vs_ceiling",
            "The model is within 0.21 nats of the best possible predictor",
            0.0312,
            0.0268,
            0.0359,
            unit="nats",
            n=512,
            threshold=0.208,
            direction="below",
            verdict="supported",
            scale=(0.0, 0.4),
        ),
        claim(
            "previous_token_heads",
            "L0.H2 is a previous-token head",
            0.8137,
            0.8068,
            0.8203,
            unit="score",
            n=256,
            heads=("L0.H2",),
            threshold=0.154,
            verdict="supported",
            reason="chance 0.077; heads chosen on other sequences",
        ),
        claim(
            "induction_heads",
            "L1.H1 is an induction head: prefix matching 0.97",
            0.9713,
            0.9661,
            0.9758,
            unit="score",
            n=256,
            heads=("L1.H1",),
            threshold=0.16,
            verdict="supported",
            reason="chance 0.053",
        ),
        claim(
            "necessary_induction",
            "Removing L1.H1 removes the behaviour",
            0.0731,
            0.0649,
            0.0812,
            unit="accuracy",
            n=256,
            semantics=mean,
            threshold=0.17,
            direction="below",
            verdict="supported",
        ),
        claim(
            "sufficient",
            "L0.H2 and L1.H1 alone keep it",
            0.948,
            0.931,
            0.963,
            unit="of clean accuracy",
            n=256,
            semantics="keep only, others at their mean",
            threshold=0.95,
            verdict="inconclusive",
            reason="the interval straddles the threshold",
        ),
        claim(
            "k_path",
            "L1.H1 reads L0.H2 through keys alone",
            0.41,
            0.37,
            0.45,
            unit="accuracy",
            n=256,
            semantics=mean,
            threshold=0.17,
            direction="below",
            verdict="contradicted",
            reason="cutting K leaves 0.41, above 0.17",
        ),
        claim(
            "sharing",
            "The work of layer 1 is done by 1.04 heads",
            1.043,
            1.021,
            1.066,
            unit="heads",
            n=256,
            verdict="supported",
            scale=(1.0, 4.0),
        ),
        claim(
            "positional",
            "No head is a positional impostor",
            None,
            None,
            None,
            reason="no head passes on a fixed period, so there is none to test",
        ),
    ]


def _curves() -> list[Curve]:
    steps = (0, 1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 200, 256, 320, 400, 500, 600)
    rise = [1 / (1 + math.exp(-(s - 150) / 18)) for s in steps]
    loss = tuple(1.9 + 2.4 * (1 - r) - 0.0004 * s for r, s in zip(rise, steps, strict=True))
    score = {h: tuple(0.04 + 0.02 * i + 0.1 * r for r in rise) for i, h in enumerate(HEADS)}
    score["L0.H2"] = tuple(0.06 + 0.75 * 1 / (1 + math.exp(-(s - 120) / 14)) for s in steps)
    score["L1.H1"] = tuple(0.05 + 0.92 * r for r in rise)
    bracket = (Span(label="phase change, steps 128 to 200", low=128.0, high=200.0),)
    xs = tuple(map(float, steps))
    return [
        Curve(
            id="induction.training",
            title="The loss falls to the ceiling in one step",
            section="Training",
            caption="Held-out loss at every checkpoint, 95 % band over 512 sequences. Ceiling: the Bayes predictor.",
            x_label="training step",
            y_label="loss (nats)",
            x_scale="log",
            spans=bracket,
            width="half",
            series=(
                Series(
                    name="loss",
                    x=xs,
                    y=loss,
                    low=tuple(v - 0.06 for v in loss),
                    high=tuple(v + 0.06 for v in loss),
                    emphasis=True,
                ),
            ),
            rules=(Rule(label="ceiling", value=1.62), Rule(label="uniform in block", value=2.5)),
        ),
        Curve(
            id="induction.emergence",
            title="Both heads form before it does",
            section="Training",
            caption="Previous-token score of layer 0, prefix matching of layer 1, by checkpoint.",
            x_label="training step",
            y_label="score",
            x_scale="log",
            spans=bracket,
            width="half",
            y_range=(0.0, 1.0),
            series=tuple(Series(name=h, x=xs, y=score[h], emphasis=h in ("L0.H2", "L1.H1")) for h in HEADS),
            rules=(Rule(label="chance", value=0.053),),
        ),
    ]


def _heatmaps() -> list[Heatmap]:
    noise = random.Random(3)
    scores = {"previous token": (0, 2, 0.81), "prefix matching": (1, 1, 0.97), "duplicate token": (0, 0, 0.31)}
    panels = []
    for title, (row, column, value) in scores.items():
        values = [[round(noise.uniform(0.02, 0.12), 4) for _ in range(4)] for _ in range(2)]
        values[row][column] = value
        panels.append(
            Panel(
                title=title,
                values=tuple(map(tuple, values)),
                low=tuple(tuple(v - 0.008 for v in r) for r in values),
                high=tuple(tuple(v + 0.008 for v in r) for r in values),
            )
        )
    names, keys = ("L0", "L1"), ("H0", "H1", "H2", "H3")
    vocabulary = tuple(chr(97 + i % 26) + str(i // 26) for i in range(65))
    full = [[(3.0 if i == j else 0) + noise.gauss(0, 0.5) for j in range(65)] for i in range(65)]
    composition = [[0.13 + (0.3 if (i, j) == (2, 1) else 0) + noise.gauss(0, 0.01) for j in range(4)] for i in range(4)]
    effect = [[noise.gauss(0, 0.01) for _ in range(4)] for _ in range(2)]
    effect[0][2], effect[1][1] = -0.926, -0.914
    return [
        Heatmap(
            id="induction.scores",
            title="One head a layer stands out",
            section="Head scores",
            panels=tuple(panels),
            caption="Means over 256 sequences, half-width of the 95 % interval below. Outlined: the chosen heads.",
            row_labels=names,
            column_labels=keys,
            unit="score",
            vmin=0.0,
            vmax=1.0,
            annotate=True,
            marks=((0, 0, 2), (1, 1, 1)),
            rules=(Rule(label="chance", value=0.053),),
        ),
        Heatmap(
            id="induction.effects",
            title="Two heads carry the behaviour",
            section="Head scores",
            kind="diverging",
            caption="Ablated minus clean accuracy, each head at its mean.",
            row_labels=names,
            column_labels=keys,
            unit="accuracy",
            annotate=True,
            width="half",
            panels=(Panel(title="", values=tuple(map(tuple, effect))),),
        ),
        Heatmap(
            id="induction.composition",
            title="L1.H1 composes with L0.H2 through K",
            section="Circuits from weights",
            caption="Norm ratio of the products of weights; the null is Gaussian, of the same shapes.",
            width="half",
            row_labels=HEADS[:4],
            column_labels=HEADS[4:],
            row_title="writes",
            column_title="reads",
            unit="ratio",
            annotate=True,
            panels=(Panel(title="K composition", values=tuple(map(tuple, composition))),),
            rules=(Rule(label="null 97.5 %", value=0.139),),
        ),
        Heatmap(
            id="induction.ov",
            title="L1.H1 copies what it reads",
            section="Circuits from weights",
            kind="diverging",
            caption="Full OV circuit, tokens to logits.",
            row_labels=vocabulary,
            column_labels=vocabulary,
            width="half",
            row_title="token read",
            column_title="logit",
            unit="logit",
            panels=(Panel(title="L1.H1", values=tuple(map(tuple, full))),),
        ),
    ]


def _table() -> Table:
    noise = random.Random(5)
    rows = []
    for head in HEADS:
        row: dict[str, str | int | float | bool | None] = {"head": head, "fired": 256}
        for semantics in ("zero", "mean", "resample", "kept"):
            big = head in ("L0.H2", "L1.H1") and not (semantics == "kept" and head == "L0.H2")
            value = (-0.93 if big else -0.004) + noise.gauss(0, 0.004)
            row |= {semantics: value, semantics + "_low": value - 0.011, semantics + "_high": value + 0.012}
        rows.append(row)
    rows[3] |= {"kept": math.nan, "kept_low": math.nan, "kept_high": math.nan}
    labels = {"zero": "zero", "mean": "mean", "resample": "resample", "kept": "patterns kept"}
    numbers = tuple(
        Column(
            key=k,
            label=v,
            digits=3,
            low=k + "_low",
            high=k + "_high",
            signed=True,
            help=f"accuracy, {v}: ablated minus clean",
        )
        for k, v in labels.items()
    )
    return Table(
        id="induction.ablations",
        title="Every head, removed",
        caption="Change in accuracy on 256 paired sequences with 95 % intervals. Bold: the chosen heads.",
        section="Ablations",
        columns=(
            Column(key="head", label="head"),
            *numbers,
            Column(key="fired", label="fired", help="sequences in which it acted"),
        ),
        rows=tuple(rows),
        marked=(2, 5),
    )


def _definitions() -> list[Definition]:
    return [
        Definition(
            id="definition.previous",
            title="previous-token score",
            text="Mean weight from a query to the key just before it; chance is the mean of 1/(q+1).",
        ),
        Definition(
            id="definition.prefix",
            title="prefix-matching score",
            text="Sum of weights on the keys that follow earlier occurrences of the query's token, where there is one.",
        ),
        Definition(
            id="definition.mean",
            title="mean ablation",
            text="A head's z is replaced by its mean over reference sequences; all else is recomputed.",
        ),
    ]


def induction_report() -> list[Finding]:
    """A whole report without anything wrong with it."""
    curves, maps = _curves(), _heatmaps()
    notice = Notice(
        id="induction.budget",
        title="",
        text="Shapley values from 200 orders; 2 000 would halve the interval.",
        section="Ablations",
    )
    answer = Answer(
        id="induction.answer",
        title="Does this model induce, and with which heads?",
        text="Yes. **L0.H2** writes each token's predecessor, **L1.H1** looks it up and copies what followed. Removing "
        "L1.H1 takes accuracy on repeated positions from 99.6 % to 7 %.",
    )
    return [answer, *claims(), *curves, *maps[:2], attention(), *maps[2:], _table(), notice, *_definitions()]


def hostile() -> list[Finding]:
    """One finding of each kind with tokens that try to get out, blanks, foreign scripts, nan, clipping, constants."""
    n = len(HOSTILE_TOKENS)
    flat = tuple(tuple([1 / (q + 1)] * (q + 1) + [0.0] * (n - q - 1)) for q in range(n))
    broken = tuple(tuple(math.nan if q == 3 and k <= q else v for k, v in enumerate(row)) for q, row in enumerate(flat))
    diagonal = tuple(tuple(float(q == k) for k in range(n)) for q in range(n))
    values = tuple(tuple(float(i * n + j) for j in range(n)) for i in range(n))
    holes = tuple(tuple(math.nan if (i + j) % 5 == 0 else v for j, v in enumerate(row)) for i, row in enumerate(values))
    common = {"section": f"Hostile {SCRIPT}", "caption": f"Caption {IMAGE}"}
    series = (
        Series(name=SCRIPT, x=(0.0, 1.0, 2.0), y=(0.0, math.nan, 5.0), emphasis=True),
        Series(name="$y$", x=(0.0, 1.0, 2.0), y=(1.0, 1.0, 1.0)),
        Series(name="empty", x=(), y=()),
    )
    rows = tuple(
        {"token": t, "n": i, "x": None if i == 2 else i / 7 - 1, "yes": i % 2 == 0}
        for i, t in enumerate(HOSTILE_TOKENS)
    )
    return [
        Answer(id="hostile.answer", title=f"Question {SCRIPT}?", text=f"**{IMAGE}** and {SCRIPT}"),
        Claim(
            id=f"hostile {IMAGE}",
            title="t",
            statement=f"Claim {SCRIPT}",
            value=2.0,
            low=1.0,
            high=3.0,
            unit=IMAGE,
            n=3,
            verdict="contradicted",
            threshold=5.0,
            reason=SCRIPT,
            semantics=IMAGE,
        ),
        Notice(id="hostile.notice", title=SCRIPT, text=IMAGE, level="warning"),
        Curve(
            id="hostile.curve",
            title=f"Curve {SCRIPT}",
            x_label=IMAGE,
            y_label=SCRIPT,
            series=series,
            y_range=(0.0, 2.0),
            rules=(Rule(label=IMAGE, value=0.5), Rule(label=SCRIPT, value=1.0, axis="x")),
            spans=(Span(label=IMAGE, low=0.2, high=0.4),),
            **common,
        ),
        Heatmap(
            id="hostile.heatmap",
            title=f"Heatmap {SCRIPT}",
            row_labels=HOSTILE_TOKENS,
            column_labels=HOSTILE_TOKENS,
            panels=(Panel(title=SCRIPT, values=holes), Panel(title="flat", values=((0.25,) * n,) * n)),
            row_title=IMAGE,
            unit=IMAGE,
            vmin=20.0,
            vmax=200.0,
            rules=(Rule(label=IMAGE, value=100.0),),
            **common,
        ),
        Table(
            id="hostile.table",
            title=f"Table {SCRIPT}",
            rows=rows,
            marked=(0,),
            columns=(
                Column(key="token", label=IMAGE, help=SCRIPT),
                Column(key="n", label="n"),
                Column(key="x", label="x", digits=2, signed=True),
                Column(key="yes", label="even"),
            ),
            **common,
        ),
        Attention(
            id="hostile.attention",
            title=f"Attention {SCRIPT}",
            tokens=HOSTILE_TOKENS,
            patterns=(flat, broken, diagonal),
            names=("L0.H0", SCRIPT, "L0.H2"),
            **common,
        ),
        Definition(id="hostile.definition", title=SCRIPT, text=IMAGE),
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unheard(Finding):
    """A kind of finding that a page knows nothing about."""

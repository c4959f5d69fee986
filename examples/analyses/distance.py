"""Distance: how many tokens back each head looks on average."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.analysis import Analysis, Budget, Progress, judge
from workbench.findings import Answer, Claim, Column, Finding, Table
from workbench.hooks import capture
from workbench.statistics import mean_interval
from workbench.subject import Subject

THRESHOLD = 1.0


class Distance(Analysis):
    """The mean over queries of sum_k A[q, k] (q - k), for each head."""

    needs = ("task",)

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        progress("patterns")
        batch = subject.sample(budget.samples, "test")
        points = [f"blocks.{layer}.attn.hook_pattern" for layer in range(subject.config.n_layers)]
        with torch.no_grad(), capture(subject.model, points) as patterns:
            subject.model(batch.tokens, batch.mask)
        place = torch.arange(batch.tokens.shape[1])
        back = place[:, None] - place[None, :]
        bounds = (0.0, float(place[-1]))
        rows = []
        for head in subject.heads:
            pattern = patterns[points[head.layer]][:, head.head]
            of_sequences = (pattern * back).sum(-1).mean(-1).numpy()
            mean = mean_interval(of_sequences, bounds=bounds, seed=subject.seed)
            rows.append({"head": str(head), "distance": mean.value, "low": mean.low, "high": mean.high})
        far = max(rows, key=lambda row: row["distance"])
        verdict = judge(far["low"], far["high"], THRESHOLD, "above")
        columns = (
            Column(key="head", label="Head"),
            Column(key="distance", label="Tokens back", digits=2, low="low", high="high"),
        )
        return [
            Answer(id="distance.answer", title="How far do the heads look?", text=f"**{far['head']}** looks farthest."),
            Claim(
                id="distance.far",
                title="A head looks beyond its neighbour",
                statement=f"{far['head']} looks more than one token back on average",
                heads=(far["head"],),
                value=far["distance"],
                low=far["low"],
                high=far["high"],
                unit="tokens",
                n=budget.samples,
                threshold=THRESHOLD,
                verdict=verdict,
                scale=bounds,
            ),
            Table(id="distance.heads", title="Distance by head", columns=columns, rows=tuple(rows)),
        ]


ANALYSIS = Distance()

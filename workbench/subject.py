"""What is looked at: a model, its vocabulary, and optionally the task it was trained on and the run it came from."""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.components import Head, all_heads
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError, unknown_name
from workbench.task import Batch, Task, Vocabulary

if TYPE_CHECKING:
    import pandas as pd

    from workbench.bridge import Model
    from workbench.model.transformer import Transformer
    from workbench.runs import Run


@dataclass(frozen=True, repr=False)
class Subject:
    """A model to take apart.

    Attributes:
        model: the transformer, in evaluation use (its weights are not changed by any analysis); or a bridge, wrapped
            by :class:`workbench.bridge.Bridged`, for interventions and patterns.
        vocabulary: the tokens that its ids mean.
        task: where sequences with targets come from; None for a model without one.
        run: the run folder that it came from; None for a planted or foreign model.
        seed: addresses the random streams of everything measured on it.
    """

    model: Model
    vocabulary: Vocabulary
    task: Task | None = None
    run: Run | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.vocabulary) != self.config.d_vocab:
            raise WorkbenchError(
                "the vocabulary does not fit the model",
                expected=f"{self.config.d_vocab} tokens",
                got=len(self.vocabulary),
            )

    def __repr__(self) -> str:
        facts = self._facts()
        named = {"run": "run {}", "seed": "seed {}", "parameters": "{} parameters"}
        return f"Subject({', '.join(named.get(name, '{}').format(fact) for name, fact in facts.items())})"

    def _repr_html_(self) -> str:
        """For notebooks: what is looked at, and what can be done with it."""
        rows = "".join(
            f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{html.escape(fact)}</td></tr>'
            for name, fact in self._facts().items()
        )
        looks = "<code>.scores()</code>, <code>.ablate(heads)</code>, <code>.patterns(sequences)</code>"
        shows = "<code>.show_attention(sequences)</code>, <code>.view()</code>"
        return f"<table>{rows}</table><p>{looks}; to look and click: {shows}</p>"

    def _facts(self) -> dict[str, str]:
        config = self.config
        count = sum(weight.numel() for weight in self.model.parameters())
        facts = {"task": self.task.name} if self.task is not None else {}
        facts["model"] = f"{config.n_layers}L x {config.n_heads}H, d {config.d_model}"
        facts["parameters"] = f"{count:,}"
        if self.run is not None:
            facts["run"] = f"{self.run.hash[:12]} in {self.run.folder}"
        return {**facts, "seed": str(self.seed)}

    @property
    def own(self) -> Transformer:
        """The model, where it is the workbench's own.

        Raises:
            WorkbenchError: it is a bridge, whose weights and inner points are not laid out as ours.
        """
        from workbench.model.transformer import Transformer

        if not isinstance(self.model, Transformer):
            raise WorkbenchError(
                "this needs a model of the workbench's own", expected="a Transformer", got=type(self.model).__name__
            )
        return self.model

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self.model.config

    @property
    def heads(self) -> tuple[Head, ...]:
        """Every head of the model."""
        return all_heads(self.config.n_layers, self.config.n_heads)

    def sample(self, n: int, split: str, name: str = "subject") -> Batch:
        """``n`` sequences of the task's split, from the subject's stream of this name, on the model's device."""
        from workbench.rng import stream

        if self.task is None:
            raise WorkbenchError("this subject has no task to draw sequences from", next_step="Give Subject a task.")
        batch = self.task.sample(n, split, stream(self.seed, name, split))
        return batch.to(next(self.model.parameters()).device)

    def scores(self, n: int = 256, *, periods: Sequence[int] = ()) -> pd.DataFrame:
        """The four head scores on repeated blocks of the model's own vocabulary.

        Args:
            n: sequences. periods: block lengths, drawn for each sequence; empty for the task's own varying ones, else 6
                to 20 as far as they fit.

        Returns:
            Rows head, score, value, low, high, chance.
        """
        from workbench.head_scores import score_heads
        from workbench.probes import probe_periods, repeated_blocks
        from workbench.rng import stream

        lengths = tuple(periods) or probe_periods(self)
        drawn = stream(self.seed, "subject", "scores")
        probe = repeated_blocks(self.vocabulary, n, self.config.n_ctx, lengths, drawn)
        return score_heads(self.own, self.vocabulary, probe).frame()

    def ablate(
        self,
        heads: str | Head | Iterable[str | Head],
        *,
        how: str = "mean",
        keep_only: bool = False,
        frozen_patterns: bool = False,
        n: int = 512,
    ) -> pd.DataFrame:
        """What happens when these heads are removed together (or everything but them), on the task's test split.

        Args:
            heads: "L1.H0", "L0.H1, L1.H0", Heads, or a mixture. how: what replaces their z (zero, mean or
                resample). keep_only: replace all others instead. frozen_patterns: hold every attention pattern at its
                clean value. n: sequences.

        Returns:
            Rows metric (accuracy, loss), clean, ablated, effect (ablated minus clean), low, high, n, fired, semantics.

        Raises:
            WorkbenchError: no task, heads that do not exist, or nothing to replace.
        """
        from workbench.ablation import KeepOnly, Mean, Pairing, Resample, Zero
        from workbench.measure import measure
        from workbench.reference import build_reference

        if n < 8:
            raise WorkbenchError("n cannot be used", expected="at least 8 sequences", got=n)
        batch = self.sample(n, "test")
        if how == "zero":
            removal: Zero | Mean | Resample = Zero(())
        elif how == "mean":
            removal = Mean((), build_reference(self))
        elif how == "resample":
            removal = Resample((), Pairing(n, self.seed))
        else:
            raise unknown_name("way to remove heads", how, ("zero", "mean", "resample"))
        if keep_only:
            return measure(self, batch, [KeepOnly(heads, removal, frozen_patterns=frozen_patterns)])[0].frame()
        return measure(self, batch, [replace(removal, parts=heads, frozen_patterns=frozen_patterns)])[0].frame()

    def patterns(
        self, sequences: Int[Tensor, "batch pos"] | Sequence[Sequence[str]]
    ) -> Float[np.ndarray, "batch layer head query_pos key_pos"]:
        """Attention patterns of every head, rows summing to 1.

        Args:
            sequences: token ids, or sequences of one length as token texts.
        """
        from workbench.hooks import capture

        if not isinstance(sequences, Tensor):
            ids = [self.vocabulary.encode(tuple(s)) for s in sequences]
            sequences = torch.tensor(ids, dtype=torch.long)
        points = [f"blocks.{layer}.attn.hook_pattern" for layer in range(self.config.n_layers)]
        with torch.no_grad(), capture(self.model, points) as kept:
            self.model(sequences.to(self.model.unembed.W_U.device), path="explicit")
        return torch.stack([kept[point] for point in points], dim=1).cpu().numpy()

    def view(self) -> Any:
        """The ablation view, for the end of a notebook cell: switch heads off and see what changes.

        Returns:
            A widget that carries the model; above 2 million parameters a message that says how to serve it instead.

        Raises:
            WorkbenchError: no task.
        """
        return importlib.import_module("workbench").view(self)  # the face hands over; nothing here knows to whom

    def show_attention(self, sequences: Int[Tensor, "batch pos"] | Sequence[Sequence[str]]) -> Any:
        """Every head's attention on these sequences as interactive figures, for the end of a notebook cell.

        Args:
            sequences: token ids, or sequences as token texts.
        """
        return importlib.import_module("workbench").show_attention(self, sequences)

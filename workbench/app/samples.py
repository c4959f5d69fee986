"""The sequences of one draw, in pieces that are quick to compute, with what clean passes over them gave."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from workbench import live
from workbench.metrics import row_scores
from workbench.model.transformer import Transformer
from workbench.puts import Sources
from workbench.restart import evaluate

PIECE_TOKENS, PIECE_WORK = 1024, 2 * 10**9
"""Most tokens of one piece, and most tokens times parameters: in the time of one, nothing else is answered."""

KEPT_BYTES = 256 * 2**20
"""Clean activations of a draw that are kept from one change to the next; where they are larger, they are made anew."""

NEAR_TIE = 1e-4


class Samples:
    """The sequences that changes are scored on.

    Attributes:
        given: the sequences, means and pairing. starts: the first sequence of each piece.
    """

    def __init__(self, given: live.Material) -> None:
        assert isinstance(given.subject.model, Transformer)
        self.given, self.model = given, given.subject.model
        t = given.batch.tokens.shape[1]
        self.size = max(1, min(PIECE_TOKENS, PIECE_WORK // live.parameters(given.subject)) // t)
        self.starts = range(0, len(given.batch), self.size)
        config = self.model.config
        floats = config.n_layers * (config.n_heads * (config.d_head + t) + config.d_model) + config.d_vocab
        self._keeps = 4 * floats * given.batch.tokens.numel() <= KEPT_BYTES
        self._pieces: dict[int, Sources] = {}
        self._clean: dict[int, Tensor] = {}

    def piece(self, start: int) -> Sources:
        """The sequences from ``start`` on."""
        if start in self._pieces:
            return self._pieces[start]
        made = Sources(self.model, self.given.batch, start, min(start + self.size, len(self.given.batch)))
        if self._keeps:
            self._pieces[start] = made
        return made

    def clean(self, start: int) -> Float[Tensor, "3 seq"]:
        """What the clean pass of a piece is judged to be."""
        if start not in self._clean:
            part = self.piece(start)
            rows = torch.cat([made.logits[0] for made in evaluate(self.model, part.batch, [[]])])
            self._clean[start] = self.judge(part, rows)
        return self._clean[start]

    @staticmethod
    def judge(part: Sources, logits: Float[Tensor, "row d_vocab"]) -> Float[Tensor, "3 seq"]:
        """Accuracy and loss of each sequence, means over its scored positions, and how many of these are near ties.

        A near tie is a position at which the answer's logit and the best other are less than ``NEAR_TIE`` apart: there
        rounding decides what is right.
        """
        scored = part.batch.scored
        targets = part.batch.targets[scored][:, None]
        best_other = logits.scatter(1, targets, -torch.inf).amax(dim=1)
        near = ((logits.gather(1, targets)[:, 0] - best_other).abs() < NEAR_TIE).to(logits.dtype)
        count = logits.new_zeros(len(part.batch)).index_add_(0, scored.nonzero()[:, 0], near)
        return torch.cat([row_scores(logits, part.batch), count[None]])

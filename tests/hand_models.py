"""Transformers whose circuit is planted by hand: every score and every ablation has a value worked out on paper.

The residual stream is four orthogonal blocks of one-hot coordinates::

    token     [d_vocab]  the token here                        (written by the embedding)
    position  [n_ctx]    where we are                          (written by the position table)
    previous  [d_vocab]  the token one to the left             (written by previous-token heads)
    output    [d_vocab]  what comes next; the only block that the unembedding reads

The position table also writes -``gain`` into ``output`` of the begin token, which never comes next; so where no head
writes, the prediction is uniform over the ordinary tokens: a loss of ln(n_symbols). Induction stays within .05 of that
above the Bayes loss for periods up to about .8 x n_symbols (it does not rule out the tokens already seen).

No norm, no MLP, no biases, unscaled scores. Id 0 is the begin token; ids from 1 are ordinary. A head without a role has
zero weights: its pattern is uniform and it writes nothing.

Kinds of head (``sharpness`` is s, ``gain`` is g):

* previous-token: the score of key q-1 is s, of every other key 0; writes the key's token into ``previous``.
* induction: a key whose ``previous`` holds the query's token scores s (once for each previous-token head), the begin
  key s/2, every other 0. So where the query's token is new, the head rests on the begin token, whose value is 0, and
  the prediction is uniform. Writes g times the key's token into ``output``.
* stripe: the score of key q-(period-1) is s (of the begin key where that lies before it); writes like an induction
  head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from workbench.components import Head
from workbench.config import ModelConfig
from workbench.model.transformer import Transformer
from workbench.subject import Subject
from workbench.task import Task, Vocabulary

Role = Literal["previous", "induction", "stripe"]
SHARPNESS = 20.0
GAIN = 10.0


@dataclass(frozen=True)
class Planted:
    """A planted model, and which heads do what."""

    model: Transformer
    vocabulary: Vocabulary
    previous_token: tuple[Head, ...] = ()
    induction: tuple[Head, ...] = ()
    stripes: tuple[Head, ...] = ()

    def subject(self, task: Task | None = None, seed: int = 0) -> Subject:
        """The model as a subject, with a task of the same vocabulary size and context."""
        return Subject(self.model, self.vocabulary, task, None, seed)


def vocabulary(n_symbols: int = 24) -> Vocabulary:
    """A begin token (id 0) and ``n_symbols`` ordinary ones, "t1" to "tN"."""
    return Vocabulary(("<bos>", *(f"t{i}" for i in range(1, n_symbols + 1))), bos=0)


def induction(n_symbols: int = 24, n_ctx: int = 32, *, sharpness: float = SHARPNESS, gain: float = GAIN) -> Planted:
    """L0.H0 looks one back, L1.H0 inducts through its K input; L0.H1 and L1.H1 are inert."""
    roles: dict[Head, Role] = {Head(0, 0): "previous", Head(1, 0): "induction"}
    return _plant(roles, n_symbols, n_ctx, sharpness=sharpness, gain=gain)


def split_induction(
    n_symbols: int = 24, n_ctx: int = 32, *, sharpness: float = SHARPNESS, gain: float = GAIN
) -> Planted:
    """H0 and H1 of layer 0 look one back, those of layer 1 induct, alike: one of each suffices, none is too few. H2 of
    both layers is inert."""
    first: dict[Head, Role] = {Head(0, h): "previous" for h in range(2)}
    second: dict[Head, Role] = {Head(1, h): "induction" for h in range(2)}
    return _plant(first | second, n_symbols, n_ctx, n_heads=3, sharpness=sharpness, gain=gain)


def positional_impostor(
    n_symbols: int = 24,
    n_ctx: int = 32,
    *,
    period: int = 13,
    n_layers: int = 2,
    sharpness: float = SHARPNESS,
    gain: float = GAIN,
) -> Planted:
    """Two heads that copy from a fixed distance: perfect on this period, nothing else. In one layer L0.H0 and L0.H1,
    in two L0.H0 and L1.H1 (the others inert)."""
    heads = (Head(0, 0), Head(0, 1)) if n_layers == 1 else (Head(0, 0), Head(1, 1))
    roles: dict[Head, Role] = dict.fromkeys(heads, "stripe")
    return _plant(roles, n_symbols, n_ctx, n_layers=n_layers, period=period, sharpness=sharpness, gain=gain)


def inert(n_symbols: int = 24, n_ctx: int = 32) -> Planted:
    """Every pattern is uniform and no head writes anything."""
    return _plant({}, n_symbols, n_ctx, sharpness=SHARPNESS, gain=GAIN)


def _plant(
    roles: Mapping[Head, Role],
    n_symbols: int,
    n_ctx: int,
    *,
    sharpness: float,
    gain: float,
    n_layers: int = 2,
    n_heads: int = 2,
    period: int = 0,
) -> Planted:
    v = n_symbols + 1
    config = ModelConfig(
        d_vocab=v,
        n_ctx=n_ctx,
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=3 * v + n_ctx,
        d_head=max(v, n_ctx),
        positions="learned",
        norm="none",
        scale_scores=False,
    )
    model = Transformer(config)
    token, position = slice(0, v), slice(v, v + n_ctx)
    previous, output = slice(v + n_ctx, 2 * v + n_ctx), slice(2 * v + n_ctx, 3 * v + n_ctx)
    ordinary = torch.eye(v)
    ordinary[0, 0] = 0.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, token] = torch.eye(v)
        model.pos_embed.W_pos[:, position] = torch.eye(n_ctx)
        model.pos_embed.W_pos[:, output.start] = -gain
        model.unembed.W_U[output] = torch.eye(v)
        for (layer, head), role in roles.items():
            attn = model.blocks[layer].attn
            w_q, w_k, w_v, w_o = attn.W_Q[head], attn.W_K[head], attn.W_V[head], attn.W_O[head]
            if role == "induction":
                w_q[token, :v] = sharpness * ordinary
                w_k[previous, :v] = ordinary
                w_k[token, :v][0] = 0.5
            else:
                back = 1 if role == "previous" else period - 1
                look_at = (torch.arange(n_ctx) - back).clamp(min=0)
                w_q[position, :n_ctx] = sharpness * torch.eye(n_ctx)[look_at]
                w_k[position, :n_ctx] = torch.eye(n_ctx)
            w_v[token, :v] = torch.eye(v) if role == "previous" else ordinary
            w_o[:v, previous if role == "previous" else output] = torch.eye(v) * (1.0 if role == "previous" else gain)

    def of(role: Role) -> tuple[Head, ...]:
        return tuple(sorted(head for head, given in roles.items() if given == role))

    return Planted(model, vocabulary(n_symbols), of("previous"), of("induction"), of("stripe"))

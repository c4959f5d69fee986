"""Planted circuits whose parts stand in for, oppose or steer each other, with every effect worked out on paper.

The tasks are in ``asked_tasks``: five tokens, asked at the last, "?". Two layers of two heads, no norm, no MLP, no
biases, unscaled scores; a head without a role has zero weights. The residual stream is blocks of one-hot coordinates::

    token     [d_vocab]  the token here                (written by the embedding)
    position  [5]        where we are                  (written by the position table)
    memory    [d_vocab]  what a first-layer head notes for a later one
    output    [d_vocab]  what comes next; the only block that the unembedding reads

The position table writes 1 into ``output`` of the begin token: where no head names a symbol, the begin token wins.
So the logits at "?" are 1 for the begin token, something for the answer and for the twin's answer, and 0 for the rest:
``Paper(answer, twin)`` gives accuracy, logit difference (answer minus twin's answer) and loss. A head that looks at one
key scores it s = 40 and every other 0: its weight there is 1 to float32's last digit. g = 4.

Values are for z replaced by zero at every position. ``denoised``: z of the head in a clean pass put into the pass over
the twin, at every position, as the share of the way from the twin's logit difference to the clean one.
``approximated`` is the same by attribution patching: gradient in the twin's pass times the difference of z.
``direct``: direct attribution on the logit difference. ``frozen``: zero, with every pattern held at its clean value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from tests.asked_tasks import ASK, FIRST_CUE, N_CTX, N_SYMBOLS, SYMBOLS, Choose, Recall, V
from workbench.components import Head
from workbench.config import ModelConfig
from workbench.model.transformer import Transformer
from workbench.subject import Subject

S, G = 40.0, 4.0
TOKEN, POSITION = slice(0, V), slice(V, V + N_CTX)
MEMORY, OUTPUT = slice(V + N_CTX, 2 * V + N_CTX), slice(2 * V + N_CTX, 3 * V + N_CTX)


@dataclass(frozen=True)
class Paper:
    """The logits at "?" of the answer and of the twin's answer; the begin token has 1, all others 0."""

    answer: float
    twin: float = 0.0

    @property
    def accuracy(self) -> float:
        return float(self.answer > max(1.0, self.twin))

    @property
    def logit_difference(self) -> float:
        return self.answer - self.twin

    @property
    def loss(self) -> float:
        return math.log(math.exp(self.answer) + math.exp(self.twin) + math.e + V - 3) - self.answer


Heads = tuple[Head, ...]


@dataclass(frozen=True)
class PlantedCircuit:
    """A planted model with its task, its roles and what is known of it on paper.

    Attributes:
        circuit: every head with a role, sorted; all others are inert. roles: the head of each role.
        smallest: the smallest sets that keep accuracy at 1 when every other head is zeroed, each minimal.
        clean: without any intervention. zeroed, frozen: by the set that is zeroed. direct, denoised, approximated: by
            head (see the module's docstring).
        paths: "Q", "K" or "V" -> the share of the way that the direct path from the lower to the upper head's input
            carries when denoised; empty where the circuit has no such path.
    """

    model: Transformer
    task: Recall | Choose
    roles: Mapping[str, Head]
    smallest: tuple[Heads, ...]
    clean: Paper
    zeroed: Mapping[Heads, Paper]
    frozen: Mapping[Heads, Paper]
    direct: Mapping[Head, float]
    denoised: Mapping[Head, float]
    approximated: Mapping[Head, float]
    paths: Mapping[str, float] = field(default_factory=dict)

    @property
    def circuit(self) -> Heads:
        return tuple(sorted(self.roles.values()))

    def subject(self, seed: int = 0) -> Subject:
        """The model as a subject with its task."""
        return Subject(self.model, self.task.vocabulary, self.task, None, seed)


def redundant_pair() -> PlantedCircuit:
    """L0.H0 and L1.H1 each bring the symbol to "?" and write g times it: 2 g together, g alone, 0 without both.

    In accuracy neither matters and the pair is everything; in the logit difference their effects just add up.
    """
    model, first, second = _blank(), Head(0, 0), Head(1, 1)
    for head in (first, second):
        _look(model, head, ASK, 1)
        _copy(model, head, TOKEN, OUTPUT, G)
    zeroed = {(first,): Paper(G), (second,): Paper(G), (first, second): Paper(0)}
    return PlantedCircuit(
        model,
        Recall(),
        roles={"first": first, "second": second},
        smallest=((first,), (second,)),
        clean=Paper(2 * G),
        zeroed=zeroed,
        frozen=zeroed,
        direct={first: G, second: G},
        denoised={first: 0.5, second: 0.5},
        approximated={first: 0.5, second: 0.5},
    )


def backup() -> PlantedCircuit:
    """L0.H0 (main) writes g times the symbol at "?", and a flag; L1.H0 (backup) does it where the flag is missing.

    The backup's query scores the symbol's key s; the flag adds 2 s on the begin key, whose value is 0. So in the clean
    pass it rests there and writes nothing. Zeroing main takes the flag away, the backup attends, and the output is the
    same to the last digit (self-repair); with frozen patterns it stays at rest and the full effect shows. A mean keeps
    the flag, so mean-ablating main shows the full effect too.
    """
    model, main, spare = _blank(), Head(0, 0), Head(1, 0)
    _look(model, main, ASK, 1)
    _copy(model, main, TOKEN, OUTPUT, G)
    _look(model, spare, ASK, 1)
    _copy(model, spare, TOKEN, OUTPUT, G)
    flag = MEMORY.start
    with torch.no_grad():
        model.blocks[0].attn.W_O[0, 1 : N_SYMBOLS + 1, flag] = 1.0
        attn = model.blocks[1].attn
        attn.W_Q[0, flag, 1] = 2 * S
        attn.W_K[0, POSITION.start, 1] = 1.0
    return PlantedCircuit(
        model,
        Recall(),
        roles={"main": main, "backup": spare},
        smallest=((main,), (spare,)),
        clean=Paper(G),
        zeroed={(main,): Paper(G), (spare,): Paper(G), (main, spare): Paper(0)},
        frozen={(main,): Paper(0), (spare,): Paper(G), (main, spare): Paper(0)},
        direct={main: G, spare: 0.0},
        denoised={main: 1.0, spare: 0.0},
        approximated={main: 1.0, spare: 0.0},
        paths={"Q": 0.0, "K": 0.0, "V": 0.0},
    )


def negative_head() -> PlantedCircuit:
    """L0.H0 (main) writes 2 g times the symbol at "?", L1.H0 (negative) takes g of it away again.

    Without the negative head the answer's logit is 2 g instead of g; without main it is -g.
    """
    model, main, negative = _blank(), Head(0, 0), Head(1, 0)
    for head, gain in ((main, 2 * G), (negative, -G)):
        _look(model, head, ASK, 1)
        _copy(model, head, TOKEN, OUTPUT, gain)
    zeroed = {(main,): Paper(-G), (negative,): Paper(2 * G), (main, negative): Paper(0)}
    return PlantedCircuit(
        model,
        Recall(),
        roles={"main": main, "negative": negative},
        smallest=((main,),),
        clean=Paper(G),
        zeroed=zeroed,
        frozen=zeroed,
        direct={main: 2 * G, negative: -G},
        denoised={main: 2.0, negative: -1.0},
        approximated={main: 2.0, negative: -1.0},
    )


def through_values() -> PlantedCircuit:
    """L0.H1 (carrier) notes the symbol in ``memory`` at position 2; L1.H0 (reader) looks there and writes g times it.

    The carrier writes nothing that the unembedding reads: its direct attribution is 0 and its effect is all, through
    the reader's values alone, frozen patterns or not.
    """
    model, carrier, reader = _blank(), Head(0, 1), Head(1, 0)
    _look(model, carrier, 2, 1)
    _copy(model, carrier, TOKEN, MEMORY, 1.0)
    _look(model, reader, ASK, 2)
    _copy(model, reader, MEMORY, OUTPUT, G)
    zeroed = {(carrier,): Paper(0), (reader,): Paper(0), (carrier, reader): Paper(0)}
    return PlantedCircuit(
        model,
        Recall(),
        roles={"carrier": carrier, "reader": reader},
        smallest=((carrier, reader),),
        clean=Paper(G),
        zeroed=zeroed,
        frozen=zeroed,
        direct={carrier: 0.0, reader: G},
        denoised={carrier: 1.0, reader: 1.0},
        approximated={carrier: 1.0, reader: 1.0},
        paths={"Q": 0.0, "K": 0.0, "V": 1.0},
    )


def through_queries() -> PlantedCircuit:
    """L0.H1 (director) notes the cue in ``memory`` at "?"; L1.H0 (reader) looks where that says and writes g times.

    Without the director the reader's query is 0, its pattern uniform over five keys, and a and b get g / 5 each: less
    than the begin token's 1. The director matters through Q alone: with frozen patterns its effect is 0, and so is its
    direct attribution. Attribution patching misses it: where the softmax has settled, its gradient is 0.
    """
    model, director, reader = _blank(), Head(0, 1), Head(1, 0)
    _look(model, director, ASK, 3)
    _copy(model, director, TOKEN, MEMORY, 1.0, ids=(FIRST_CUE, FIRST_CUE + 1))
    _copy(model, reader, TOKEN, OUTPUT, G)
    with torch.no_grad():
        attn = model.blocks[1].attn
        for dim, place in enumerate((1, 2)):
            attn.W_Q[0, MEMORY.start + FIRST_CUE + dim, dim] = S
            attn.W_K[0, POSITION.start + place, dim] = 1.0
    return PlantedCircuit(
        model,
        Choose(),
        roles={"director": director, "reader": reader},
        smallest=((director, reader),),
        clean=Paper(G),
        zeroed={(director,): Paper(G / 5, G / 5), (reader,): Paper(0), (director, reader): Paper(0)},
        frozen={(director,): Paper(G), (reader,): Paper(0), (director, reader): Paper(0)},
        direct={director: 0.0, reader: G},
        denoised={director: 1.0, reader: 1.0},
        approximated={director: 0.0, reader: 1.0},
        paths={"Q": 1.0, "K": 0.0, "V": 0.0},
    )


CIRCUITS = (redundant_pair, backup, negative_head, through_values, through_queries)


def _blank() -> Transformer:
    """Embeddings and unembedding in place; no head does anything yet."""
    config = ModelConfig(
        d_vocab=V,
        n_ctx=N_CTX,
        n_layers=2,
        n_heads=2,
        d_model=3 * V + N_CTX,
        d_head=V,
        positions="learned",
        norm="none",
        scale_scores=False,
    )
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, TOKEN] = torch.eye(V)
        model.pos_embed.W_pos[:, POSITION] = torch.eye(N_CTX)
        model.pos_embed.W_pos[:, OUTPUT.start] = 1.0
        model.unembed.W_U[OUTPUT] = torch.eye(V)
    return model


@torch.no_grad()
def _look(model: Transformer, head: Head, query: int, key: int) -> None:
    """From one position the head looks at another; from everywhere else evenly."""
    attn = model.blocks[head.layer].attn
    attn.W_Q[head.head, POSITION.start + query, 0] = S
    attn.W_K[head.head, POSITION.start + key, 0] = 1.0


@torch.no_grad()
def _copy(
    model: Transformer, head: Head, source: slice, target: slice, gain: float, ids: tuple[int, ...] = tuple(SYMBOLS)
) -> None:
    """What stands in one block for these tokens is written into another, times the gain."""
    attn = model.blocks[head.layer].attn
    for i in ids:
        attn.W_V[head.head, source.start + i, i] = 1.0
        attn.W_O[head.head, i, target.start + i] = gain

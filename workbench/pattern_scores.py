"""What a pattern says about a head: pure functions of patterns, tokens and values. Nothing given is ever modified.

Axes: ``batch query_pos key_pos head d_head d_vocab``; a pattern's rows sum to 1 over the keys up to the query. With
``bos`` the begin token stands at position 0: attention to it counts in the row's sum, but it is never a target.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Pattern = Float[Tensor, "batch head query_pos key_pos"]
Targets = Bool[Tensor, "batch query_pos key_pos"]

MAX_LOGITS = 1 << 22
"""How many logits of direct paths are held at a time."""


def previous_targets(tokens: Int[Tensor, "batch pos"], bos: bool) -> Targets:
    """The key just before each query; from position 1 on, 2 with a begin token."""
    n, length = tokens.shape
    before = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril(-1).triu(-1)
    before[:, 0] &= not bos
    return before.expand(n, length, length)


def duplicate_targets(tokens: Int[Tensor, "batch pos"], bos: bool) -> Targets:
    """All earlier keys that hold the query's own token."""
    same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    if bos:
        same[:, :, 0] = False
    return same


def prefix_targets(tokens: Int[Tensor, "batch pos"], bos: bool) -> Targets:
    """All keys just after an earlier occurrence of the query's token: what a perfect induction head attends to."""
    after = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.bool, device=tokens.device)
    after[:, :, 1:] = duplicate_targets(tokens, bos)[:, :, :-1]
    return after


def attention_to(pattern: Pattern, targets: Targets) -> tuple[Float[Tensor, "batch head"], Int[Tensor, " batch"]]:
    """Summed attention to a query's targets, averaged over the queries that have any.

    Returns:
        The mean of each sequence and head, in [0, 1] (NaN for a sequence without any target), and how many queries of
        each sequence had no target and were left out.
    """
    queries = targets.any(dim=2).sum(dim=1)
    total = torch.einsum("bhqk,bqk->bh", pattern.float(), targets.float())
    return total / queries[:, None], targets.shape[1] - queries


def chance(targets: Targets) -> Float[Tensor, " batch"]:
    """What uniform attention over the visible keys scores: mean over queries of (number of targets) / (q + 1)."""
    visible = torch.arange(1, targets.shape[1] + 1, device=targets.device)
    return (targets.sum(dim=2) / visible).sum(dim=1) / targets.any(dim=2).sum(dim=1)


def previous_token(pattern: Pattern, bos: bool) -> tuple[Float[Tensor, "batch head"], Int[Tensor, " batch"]]:
    """Mean of ``A[q, q-1]`` over q >= 1 (2 with a begin token); see :func:`attention_to` for what is returned."""
    nothing = torch.zeros(pattern.shape[0], pattern.shape[2], dtype=torch.long, device=pattern.device)
    return attention_to(pattern, previous_targets(nothing, bos))


def duplicate_token(
    pattern: Pattern, tokens: Int[Tensor, "batch pos"], bos: bool
) -> tuple[Float[Tensor, "batch head"], Int[Tensor, " batch"]]:
    """Mean over queries of the sum of ``A[q, k]`` over all k < q with the query's token; see :func:`attention_to`."""
    return attention_to(pattern, duplicate_targets(tokens, bos))


def prefix_matching(
    pattern: Pattern, tokens: Int[Tensor, "batch pos"], bos: bool
) -> tuple[Float[Tensor, "batch head"], Int[Tensor, " batch"]]:
    """Mean over queries of the sum of ``A[q, k+1]`` over all k < q with the query's token (Olsson et al. 2022, on
    blocks of varying period); see :func:`attention_to`."""
    return attention_to(pattern, prefix_targets(tokens, bos))


def copied_share(
    value: Float[Tensor, "batch pos head d_head"],
    tokens: Int[Tensor, "batch pos"],
    to_logits: Float[Tensor, "head d_head d_vocab"],
) -> Float[Tensor, "batch head pos"]:
    """How far each key's direct path raises its own token: 1 where it raises nothing else, 0 at an even spread.

    The logits ``value @ to_logits``, mean-subtracted over the vocabulary, negative parts dropped: the share on the
    key's own token, rescaled by ``(share - 1/V) / (1 - 1/V)``. A write that moves no logit against another scores 0.

    Args:
        value: without its bias. to_logits: ``W_O @ W_U`` of each head.
    """
    n, length, n_heads, _ = value.shape
    d_vocab = to_logits.shape[-1]
    own = tokens.reshape(-1, 1)
    shares = torch.empty(n_heads, n * length, device=value.device)
    rows = max(1, MAX_LOGITS // d_vocab)
    for head in range(n_heads):
        flat = value[:, :, head].reshape(n * length, -1).float()
        for start in range(0, len(flat), rows):
            piece = slice(start, start + rows)
            logits = flat[piece] @ to_logits[head].float()
            raised = (logits - logits.mean(dim=1, keepdim=True)).clamp(min=0)
            total = raised.sum(dim=1)
            share = raised.gather(1, own[piece])[:, 0] / total
            # Below rounding of the logits themselves, what is left after centring is noise: nothing was written.
            moved = total > 1e-6 * logits.abs().sum(dim=1)
            shares[head, piece] = torch.where(moved, (share * d_vocab - 1) / (d_vocab - 1), 0.0)
    return shares.view(n_heads, n, length).transpose(0, 1)


def copying(pattern: Pattern, share: Float[Tensor, "batch head pos"], bos: bool) -> Float[Tensor, "batch head"]:
    """The mean of :func:`copied_share` over the keys behind the begin token, weighted by all attention that they get.

    0 where a head attends to the begin token only. Range ``[-1 / (V - 1), 1]``.
    """
    weight = pattern.float().sum(dim=2)[:, :, int(bos) :]
    total = weight.sum(dim=2)
    return torch.where(total > 0, (weight * share[:, :, int(bos) :]).sum(dim=2) / total, 0.0)

"""Circuits read off the weights: where a head looks (QK), what looking writes (OV), and how heads feed one another.

Everything follows Elhage et al. (2021) in row-vector form: scores ``x_q W_QK x_k^T``, writes ``x_k W_OV``. Weights are
read afresh at every call and converted to float32, whatever the model computes in.

Axes: ``batch pos query_pos key_pos head d_head d_model d_vocab``; ``r`` is the rank of a product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor

from workbench.components import Head, as_heads, check_heads
from workbench.errors import WorkbenchError
from workbench.model import positions
from workbench.model.blocks import EPS
from workbench.model.transformer import Transformer

ZERO = 1e-6
"""A product this small beside the product of its factors' norms is rounding, and counts as the zero matrix."""


def qk_circuit(model: Transformer, head: Head | str) -> Float[Tensor, "d_model d_model"]:
    """``W_Q W_K^T``: query row vectors on the left, keys on the right. Without biases, rotation and score scaling.

    Raises:
        WorkbenchError: no such head, or attention that is uniform.
    """
    layer, h = _head(model, head)
    return _weight(model, layer, "W_Q")[h] @ _weight(model, layer, "W_K")[h].T


def ov_circuit(model: Transformer, head: Head | str) -> Float[Tensor, "d_model d_model"]:
    """``W_V W_O``: what the head adds to a query's stream for each unit of a key's, were all attention there."""
    layer, h = _head(model, head)
    return _weight(model, layer, "W_V")[h] @ _weight(model, layer, "W_O")[h]


def full_qk(
    model: Transformer, head: Head | str, *, offset: int = 0, through: str | Head | Iterable[str | Head] = ()
) -> Float[Tensor, "d_vocab d_vocab"]:
    """Attention scores from token to token, ``[query token, key token]``, in the units of ``attn_scores``.

    Each token's embedding stands in the residual stream alone (without its position where that is added), passes the
    layer's own norm where the model has it before the sublayer, and meets the biases of queries and keys. Rotary
    queries are turned by the offset; ALiBi's penalty at that offset is included; other positions do not depend on it.

    Args:
        offset: query position minus key position.
        through: heads of earlier layers. With them, the keys are the sum of what their OV circuits write for the
            token (each reading the embedding alone): through the previous-token heads, the induction circuit.

    Raises:
        WorkbenchError: no such head, an offset outside the context, uniform attention, or ``through`` heads that are
            not below the head.
    """
    layer, h = _head(model, head)
    config, attn = model.config, model.blocks[layer].attn
    if not 0 <= offset < config.n_ctx:
        raise WorkbenchError(
            "an offset lies outside the context", expected=f"0 to {config.n_ctx - 1} positions back", got=offset
        )
    embedding = model.embed.W_E.detach().float()
    keys = embedding
    senders = as_heads(through)
    if senders:
        check_heads(senders, config.n_layers, config.n_heads)
        if senders[-1].layer >= layer:
            raise WorkbenchError(
                f"nothing that {senders[-1]} writes reaches the keys of {Head(layer, h)}",
                expected=f"heads in layers below {layer}",
                got=str(senders[-1]),
            )
        keys = sum((_read(model, s.layer, embedding) @ ov_circuit(model, s) for s in senders), 0 * embedding)
    q = _read(model, layer, embedding) @ _weight(model, layer, "W_Q")[h] + _weight(model, layer, "b_Q")[h]
    k = _read(model, layer, keys) @ _weight(model, layer, "W_K")[h] + _weight(model, layer, "b_K")[h]
    if model.rotary is not None:
        q = positions.rotate(q[:, None], model.rotary[:, offset : offset + 1].float())[:, 0]
    scores = q @ k.T / attn.scale
    if model.alibi is not None:
        scores = scores + model.alibi[h, offset, 0].float()
    return scores


def full_ov(model: Transformer, head: Head | str) -> Float[Tensor, "d_vocab d_vocab"]:
    """Logits that the head adds directly for attending to a token alone, ``[key token, output token]``.

    The embedding alone passes the layer's own norm where there is one before the sublayer; then ``W_V W_O W_U``,
    without value bias and final norm. Softmax ignores what is added to a whole row.
    """
    layer, _ = _head(model, head)
    embedding = _read(model, layer, model.embed.W_E.detach().float())
    return embedding @ ov_circuit(model, head) @ model.unembed.W_U.detach().float()


def scores_from_weights(
    model: Transformer, layer: int, residual: Float[Tensor, "batch pos d_model"]
) -> Float[Tensor, "batch head query_pos key_pos"]:
    """The scores of every query and key of a layer, from the residual stream that enters it (``hook_resid_pre``).

    Norm before the sublayer, biases, rotation, scaling and ALiBi are included, the causal mask is not: where a key is
    visible, this is ``attn_scores``.
    """
    check_heads([Head(layer, 0)], model.config.n_layers, model.config.n_heads)
    x, length = _read(model, layer, residual.detach().float()), residual.shape[1]
    q, k = (
        torch.einsum("bpd,hdk->bhpk", x, _weight(model, layer, f"W_{n}")) + _weight(model, layer, f"b_{n}")[:, None]
        for n in "QK"
    )
    if model.rotary is not None:
        q, k = (positions.rotate(t, model.rotary[:, :length].float()) for t in (q, k))
    scores = q @ k.transpose(-1, -2) / model.blocks[layer].attn.scale
    return scores if model.alibi is None else scores + model.alibi[:, :length, :length].float()


def product_eigenvalues(
    left: Float[Tensor, "*lead n r"], right: Float[Tensor, "*lead r n"]
) -> Complex[Tensor, "*lead r"]:
    """The eigenvalues of ``left @ right`` that can differ from 0: those of the small ``right @ left``."""
    return torch.linalg.eigvals(right.float() @ left.float())


def product_norm(
    left: Float[Tensor, "... n r"], middle: Float[Tensor, "... r s"], right: Float[Tensor, "... s m"]
) -> Float[Tensor, ...]:
    """The Frobenius norm of ``left @ middle @ right`` without forming it, in float64. Leading axes broadcast."""
    a, m, b = left.double(), middle.double(), right.double()
    squared = ((a.mT @ a @ m) * (m @ (b @ b.mT))).sum(dim=(-2, -1))
    return squared.clamp(min=0).sqrt()


def ov_eigenvalue_copying(model: Transformer, head: Head | str) -> float:
    """``sum Re(l) / sum |l|`` over the eigenvalues of ``W_E W_V W_O W_U``, in [-1, 1]: 1 copies, -1 suppresses.

    ``W_U`` is centred over the vocabulary, because softmax ignores that shift and the eigenvalues do not. A product
    that is zero but for rounding scores 0. Always in float32.
    """
    layer, h = _head(model, head)
    unembed = model.unembed.W_U.detach().float()
    left = model.embed.W_E.detach().float() @ _weight(model, layer, "W_V")[h]
    w_o = _weight(model, layer, "W_O")[h]
    right = w_o @ (unembed - unembed.mean(dim=1, keepdim=True))
    if right.norm() * left.norm() <= ZERO * w_o.norm() * unembed.norm() * left.norm():
        return 0.0
    values = product_eigenvalues(left, right)
    total = float(values.abs().sum())
    return float(values.real.sum()) / total if total > 0 else 0.0


@dataclass(frozen=True)
class CompositionRow:
    """How strongly one head's write feeds another's reading, from the weights.

    Attributes:
        kind: which input of the receiver, "Q", "K" or "V".
        value: ``||W_out W_in||_F / (||W_out||_F ||W_in||_F)``, in [0, 1]; 0 where a factor is zero.
        null_low, null_median, null_high: the 2.5, 50 and 97.5 % quantiles of the same number for Gaussian factors of
            the same shapes. The value itself samples nothing and has no interval.
    """

    kind: str
    sender: Head
    receiver: Head
    value: float
    null_low: float
    null_median: float
    null_high: float


def composition(model: Transformer, *, null_samples: int = 200, stream: torch.Generator) -> list[CompositionRow]:
    """Composition of every pair of heads in different layers; where attention is uniform, of V alone.

    ``W_out`` is the sender's ``W_V W_O``; ``W_in`` is the receiver's ``W_Q W_K^T`` (Q), its transpose (K) or its
    ``W_V W_O`` (V). The weights as they are: no gain of a norm is folded in.
    """
    config = model.config
    kinds = {"V": ("W_V", "W_O")}
    if config.attention == "learned":
        kinds = {"Q": ("W_Q", "W_K"), "K": ("W_K", "W_Q")} | kinds
    d, r = config.d_model, config.d_head
    factors = [torch.randn(null_samples, *shape, generator=stream) for shape in ((d, r), (r, d)) * 2]
    null = torch.quantile(_composed(*factors), torch.tensor([0.025, 0.5, 0.975], dtype=torch.float64))
    low, median, high = null.tolist()
    rows = []
    for kind, (left, right) in kinds.items():
        for below in range(config.n_layers):
            for above in range(below + 1, config.n_layers):
                w_in = _weight(model, above, left)[None], _weight(model, above, right)[None]
                if kind != "V":
                    w_in = w_in[0], w_in[1].mT
                w_out = _weight(model, below, "W_V")[:, None], _weight(model, below, "W_O")[:, None]
                rows += [
                    CompositionRow(kind, Head(below, s), Head(above, t), value, low, median, high)
                    for s, values in enumerate(_composed(*w_out, *w_in).tolist())
                    for t, value in enumerate(values)
                ]
    return rows


def _composed(out_left: Tensor, out_right: Tensor, in_left: Tensor, in_right: Tensor) -> Tensor:
    """``||W_out W_in|| / (||W_out|| ||W_in||)`` of two low-rank products; leading axes broadcast."""
    one = torch.eye(out_left.shape[-1], dtype=torch.float64, device=out_left.device)
    scale = product_norm(out_left, one, out_right) * product_norm(in_left, one, in_right)
    together = product_norm(out_left, out_right.double() @ in_left.double(), in_right)
    return torch.where(scale > 0, together / scale, 0.0)


def _head(model: Transformer, head: Head | str) -> Head:
    (found,) = as_heads(head)
    check_heads([found], model.config.n_layers, model.config.n_heads)
    return found


def _weight(model: Transformer, layer: int, name: str) -> Tensor:
    if model.config.attention != "learned" and name[-1] in "QK":
        raise WorkbenchError(
            "this model has no QK circuit: its attention is uniform",
            expected="model.attention=learned",
            got=f"model.attention={model.config.attention}",
        )
    return getattr(model.blocks[layer].attn, name).detach().float()


def _read(model: Transformer, layer: int, x: Tensor) -> Tensor:
    """The residual stream as a layer's heads read it."""
    if model.config.norm != "pre":
        return x
    norm = model.blocks[layer].ln1
    return F.layer_norm(x, norm.w.shape, norm.w.float(), norm.b.float(), EPS).detach()

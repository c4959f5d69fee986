"""Interventions on a TransformerLens bridge: any transformer of its kind, seen as a model of our own.

A bridge's hook points are those of the library underneath: some hold another shape, some are passed by only when a
switch is set, some report a value that nothing reads any more. So a bridge is not taken at its word: when it is
wrapped, a few short passes show that every part writes what its point says, and what fails is refused, with the reason.

Axes: ``batch pos head d_head d_model d_vocab``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, capture, intervene
from workbench.model.blocks import watched
from workbench.model.transformer import Path, Transformer

POSITIONS: dict[Any, Any] = {"standard": "learned", "rotary": "rotary", "alibi": "alibi"}
NORMS: dict[Any, Any] = {"LN": "pre", "LNPre": "pre", "RMS": "pre", "RMSPre": "pre", None: "none"}
"""TransformerLens's names, and ours. RMSNorm counts as pre: what holds of the norms here holds of it."""

TOLERANCE = 1e-4
"""How far what is shown on a bridge may be off, relative to max(1, largest value); more in half precision."""


class Bridged(nn.Module):
    """A bridge as a model that interventions run on; the bridge itself stays as it is, and in use.

    ``Subject(Bridged(bridge), vocabulary, task)`` measures, patches and builds references as on a model of our own.
    Every pass goes through the hooks. Padding may only follow a sequence: there no token sees it.

    Attributes:
        config: the bridge's shape. n_key_value_heads: keys and values a layer; each serves a group of neighbouring
            heads where there are fewer than heads, and what enters it can only be changed for the whole group.

    Raises:
        WorkbenchError: a bridge that is no such transformer, or whose parts do not write what their points hold.
    """

    def __init__(self, bridge: nn.Module) -> None:
        super().__init__()
        self.bridge: Any = bridge
        self.config = _config(bridge)
        self.training = False
        self.n_key_value_heads = int(getattr(self.bridge.cfg, "n_key_value_heads", None) or self.config.n_heads)
        self._replaced: dict[str, nn.Module] = {}
        inputs = [f"blocks.{layer}.hook_{kind}_input" for layer in range(self.config.n_layers) for kind in "qkv"]
        points: Any = self.bridge.hook_dict
        self._inputs = {name: points[name] for name in inputs if name in points}
        with torch.no_grad():
            self._prove()

    @property
    def hook_dict(self) -> dict[str, nn.Module]:
        """The bridge's hook points, by name; those that cannot be used refuse every hook with the reason."""
        return {**self.bridge.hook_dict, **self._replaced}

    @property
    def blocks(self) -> Any:
        """The bridge's own: ``blocks[l].attn.W_O`` is ``[head d_head d_model]``."""
        return self.bridge.blocks

    @property
    def unembed(self) -> Any:
        """The bridge's own, with ``W_U [d_model d_vocab]``."""
        return self.bridge.unembed

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        mask: Bool[Tensor, "batch pos"] | None = None,
        *,
        path: Path = "explicit",
    ) -> Float[Tensor, "batch pos d_vocab"]:
        """Logits; ``path`` says nothing here, every pass is explicit.

        Raises:
            WorkbenchError: a sequence longer than the context, ids outside the vocabulary, or padding before a token.
        """
        low, high = int(tokens.min()), int(tokens.max())
        if not 0 <= low <= high < self.config.d_vocab:
            raise WorkbenchError(
                "token ids lie outside the vocabulary",
                expected=f"0 to {self.config.d_vocab - 1}",
                got=low if low < 0 else high,
            )
        if tokens.shape[1] > self.config.n_ctx:
            raise WorkbenchError(
                "a sequence is longer than the context",
                expected=f"at most {self.config.n_ctx} tokens",
                got=tokens.shape[1],
            )
        if mask is not None and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise WorkbenchError(
                "a bridge takes no padding before a token", expected="padding after each sequence", got="a gap"
            )
        if not any(map(watched, self._inputs.values())):
            return self.bridge(tokens)
        before = bool(self.bridge.cfg.use_split_qkv_input)
        try:
            self.bridge.set_use_split_qkv_input(True)
            return self.bridge(tokens)
        finally:
            self.bridge.set_use_split_qkv_input(before)

    def _prove(self) -> None:
        """Raise, or replace points by ones that refuse, where what the points say does not hold."""
        layers = range(self.config.n_layers)
        z, pattern = ([f"blocks.{layer}.attn.hook_{name}" for layer in layers] for name in ("z", "pattern"))
        before, after = ([f"blocks.{layer}.hook_resid_{name}" for layer in layers] for name in ("pre", "post"))
        mlp = [f"blocks.{layer}.hook_mlp_out" for layer in layers] if self.config.d_mlp else []
        missing = [name for name in (*z, *pattern, *before, *after, *mlp) if name not in self.hook_dict]
        if missing:
            raise WorkbenchError("a bridge lacks hook points", expected=missing[0], got=f"{len(missing)} missing")
        length = min(4, self.config.n_ctx)
        tokens = torch.arange(2 * length, device=self.unembed.W_U.device).reshape(2, length) % self.config.d_vocab
        tokens[1, :-1] = tokens[0, :-1]

        clean, logits = self._pass(tokens, [*z, *pattern, *before, *after, *mlp])
        self._require_shapes(clean, z, pattern, tuple(tokens.shape))
        if length > 1 and _far(logits[0, :-1], logits[1, :-1]):
            raise _unlike("causal attention", "a token that sees later ones")
        # What the heads and the MLP write is all that is added to the stream, but for the biases that are left then.
        empty, _ = self._pass(tokens, [*before, *after], [*z, *mlp], torch.zeros_like)
        for layer in layers:
            write = torch.einsum("bphk,hkd->bpd", clean[z[layer]], self.blocks[layer].attn.W_O)
            for name in mlp[layer : layer + 1]:
                write = write + clean[name]
            rest = empty[after[layer]] - empty[before[layer]]
            if _far(clean[before[layer]] + write + rest, clean[after[layer]]):
                raise _unlike(
                    "a residual stream that is a sum of what heads (z through W_O) and MLPs write", f"none in L{layer}"
                )
        self._refuse(self._unread(tokens, pattern, z), "its attention does not read the pattern that is put there")
        if self.config.norm == "pre":
            scale = "ln_final.hook_scale"
            _, other = self._pass(tokens, [], [scale], lambda x: 2 * x) if scale in self.hook_dict else ({}, logits)
            if not _far(other, logits):
                self._refuse([scale], "its final norm does not read the scale that is put there")
        self._prove_inputs(tokens, clean, logits)

    def _require_shapes(
        self, clean: dict[str, Tensor], z: Sequence[str], pattern: Sequence[str], shape: tuple[int, ...]
    ) -> None:
        n, t = shape
        h, k = self.config.n_heads, self.config.d_head
        for names, expected in ((z, (n, t, h, k)), (pattern, (n, h, t, t))):
            for name in names:
                if tuple(clean[name].shape) != expected:
                    raise _unlike(f"{name} of shape {expected}", tuple(clean[name].shape))

    def _unread(self, tokens: Tensor, pattern: Sequence[str], z: Sequence[str]) -> list[str]:
        """The pattern points whose value can be changed without z following."""
        unread = []
        for of_head, name in zip(z, pattern, strict=True):
            try:
                seen, _ = self._pass(tokens, [of_head], [name], torch.zeros_like)
            except Exception:
                unread.append(name)
            else:
                unread += [name] if bool(seen[of_head].any()) else []
        return unread

    def _prove_inputs(self, tokens: Tensor, clean: dict[str, Tensor], logits: Tensor) -> None:
        """Heads' own inputs must be the stream before the norm, and passing them by must not change the pass."""
        try:
            seen, split = self._pass(tokens, list(self._inputs))
        except Exception as error:
            self._refuse(self._inputs, f"TransformerLens has no point before its queries, keys and values ({error})")
            return
        group = self.config.n_heads // self.n_key_value_heads
        for name, point in self._inputs.items():
            stream = clean[name.rpartition(".")[0] + ".hook_resid_pre"]
            if _far(split, logits) or _far(seen[name], stream[:, :, None].expand_as(seen[name])):
                self._refuse([name], "what passes it is not the residual stream before the norm")
            elif group > 1 and seen[name].shape[2] == self.n_key_value_heads:
                self._replaced[name] = _Shared(name, point, group)

    def _pass(
        self,
        tokens: Tensor,
        looked_at: Sequence[str],
        edited: Sequence[str] = (),
        edit: Callable[[Tensor], Tensor] = torch.zeros_like,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """A pass with the same edit at some points, and what it holds at others."""
        with intervene(self, [Edit(name, edit, "proof") for name in edited]), capture(self, looked_at) as seen:
            logits = self(tokens)
        return seen, logits

    def _refuse(self, names: Iterable[str], reason: str) -> None:
        self._replaced |= {name: _Refused(name, reason) for name in names}


class _Refused(nn.Module):
    """A hook point that takes no hook."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__()
        self.name, self.reason = name, reason

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise WorkbenchError(f"{self.name} cannot be used on this bridge", got=self.reason)

    register_full_backward_hook = register_forward_hook


class _Shared(nn.Module):
    """The point of keys or values that groups of heads share, seen as if each head had its own."""

    def __init__(self, name: str, point: nn.Module, group: int) -> None:
        super().__init__()
        self.name, self.group = name, group
        self._point = (point,)  # in a tuple, so that it is no part of this module
        self.hook_conversion = self

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        return self._point[0].register_forward_hook(*args, **kwargs)

    def register_full_backward_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise WorkbenchError(f"{self.name} has no gradient of each head", got="keys and values that heads share")

    def convert(self, x: Float[Tensor, "batch pos shared d_model"]) -> Float[Tensor, "batch pos head d_model"]:
        return x.repeat_interleave(self.group, dim=2)

    def revert(self, x: Float[Tensor, "batch pos head d_model"]) -> Float[Tensor, "batch pos shared d_model"]:
        by_group = x.unflatten(2, (-1, self.group))
        differ = (by_group != by_group[:, :, :, :1]).flatten(3).any(-1).flatten(0, 1).any(0).nonzero()
        if len(differ):
            first = int(differ[0, 0]) * self.group
            what = "keys" if "hook_k_" in self.name else "values"
            raise WorkbenchError(
                f"heads that share their {what} cannot be told apart at {self.name}",
                expected=f"one change for all of H{first} to H{first + self.group - 1}",
                got="different ones",
                next_step="Name every head of the group.",
            )
        return by_group[:, :, :, 0]


def _config(bridge: nn.Module) -> ModelConfig:
    """The bridge's shape, or one error that names everything that has no name here."""
    cfg: Any = getattr(bridge, "cfg", None)
    if cfg is None or not hasattr(bridge, "hook_dict") or not hasattr(bridge, "blocks"):
        raise WorkbenchError("this is no TransformerBridge", expected="one with blocks", got=type(bridge).__name__)
    positions, norm = getattr(cfg, "positional_embedding_type", None), getattr(cfg, "normalization_type", None)
    rules = [
        (positions in POSITIONS, f"positions {', '.join(POSITIONS)}", f"positions {positions}"),
        (norm in NORMS, f"norm {', '.join(map(str, NORMS))}", f"norm {norm}"),
        (cfg.attention_dir == "causal", "causal attention", f"attention {cfg.attention_dir}"),
        (not cfg.parallel_attn_mlp, "the MLP after attention", "both side by side"),
        (cfg.d_vocab_out in (-1, cfg.d_vocab), "one vocabulary", f"{cfg.d_vocab} and {cfg.d_vocab_out} tokens"),
        (not bridge.training, "evaluation use (bridge.eval())", "training use"),
    ]
    wrong = [(expected, got) for fits, expected, got in rules if not fits]
    if wrong:
        raise _unlike("; ".join(expected for expected, _ in wrong), "; ".join(got for _, got in wrong))
    return ModelConfig(
        d_vocab=cfg.d_vocab,
        n_ctx=cfg.n_ctx,
        n_layers=cfg.n_layers,
        n_heads=cfg.n_heads,
        d_model=cfg.d_model,
        d_head=cfg.d_head,
        d_mlp=0 if cfg.attn_only else int(cfg.d_mlp or 0),
        positions=POSITIONS[positions],
        norm=NORMS[norm],
        scale_scores=bool(cfg.use_attn_scale),
    )


def _unlike(expected: str, got: object) -> WorkbenchError:
    return WorkbenchError("a bridge that interventions here cannot run on", expected=expected, got=got)


def _far(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors differ by more than rounding."""
    tolerance = max(TOLERANCE, 8 * torch.finfo(b.dtype).eps)
    return not float((a - b).abs().max()) <= tolerance * max(1.0, float(b.abs().max()))


Model = Transformer | Bridged
"""What interventions run on."""

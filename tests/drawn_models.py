"""Small models with every weight drawn, and what their logits are compared by."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.config import ModelConfig
from workbench.model.transformer import Transformer

POSITIONS = ("learned", "sinusoidal", "rotary", "alibi", "none")
NORMS = ("pre", "post", "none")
VARIED = {
    "learned-pre-mlp": {"positions": "learned", "norm": "pre", "d_mlp": 20},
    "rotary-post-mlp": {"positions": "rotary", "norm": "post", "d_mlp": 20},
    "alibi-none": {"positions": "alibi", "norm": "none"},
    "sinusoidal-pre-uniform": {"positions": "sinusoidal", "norm": "pre", "attention": "uniform"},
    "none-pre-unscaled": {"positions": "none", "norm": "pre", "scale_scores": False},
    "rotary-pre": {"positions": "rotary", "norm": "pre"},
}


def build(seed: int = 0, **options: object) -> Transformer:
    """A small model all of whose weights, biases and gains are drawn, so that none of them can hide."""
    shape = {"d_vocab": 11, "n_ctx": 12, "d_model": 16, "n_heads": 2, "d_head": 6}
    model = Transformer(ModelConfig(**{**shape, **options}), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            matrix = name.rpartition(".")[2].startswith("W_")
            weight.copy_(noise * weight.shape[-2] ** -0.5 if matrix else weight + 0.3 * noise)
    return model.eval()


def draw(model: Transformer, batch: int = 3, t: int = 12, seed: int = 1) -> Tensor:
    return torch.randint(0, model.config.d_vocab, (batch, t), generator=torch.Generator().manual_seed(seed))


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the larger of 1 and the largest magnitude."""
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))

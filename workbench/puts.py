"""From interventions to what is put where on a batch, and from that to the hooks that put it there.

Axes: ``batch pos head d_head d_model``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import groupby

import torch
from jaxtyping import Bool
from torch import Tensor

from workbench.ablation import Intervention, Joint, KeepOnly, Mean, Resample, Zero
from workbench.bridge import Model
from workbench.components import Head, Mlp, Part
from workbench.cut_path import CutPath
from workbench.errors import WorkbenchError
from workbench.hooks import Edit, capture
from workbench.places import Place, mask_of
from workbench.reference import Pairing
from workbench.replacements import Put
from workbench.task import Batch


class Sources:
    """Some sequences of a batch, and the clean activations that interventions on them take (computed when needed)."""

    def __init__(self, model: Model, whole: Batch, start: int, stop: int) -> None:
        self.model, self.whole, self.start, self.stop = model, whole, start, stop
        self.batch = whole[start:stop]
        self._donors: dict[Pairing, dict[str, Tensor]] = {}
        self._masks: dict[tuple[Place, ...], Bool[Tensor, "batch pos"]] = {}

    @cached_property
    def clean(self) -> Tensor:
        """Clean logits, of the explicit path."""
        return self.model(self.batch.tokens, self.batch.mask, path="explicit")

    @cached_property
    def patterns(self) -> dict[str, Tensor]:
        """The clean pattern of every layer."""
        return self._kept([f"blocks.{layer}.attn.hook_pattern" for layer in range(self.model.config.n_layers)])

    @cached_property
    def scale(self) -> dict[str, Tensor]:
        """The clean scale of the final norm."""
        return self._kept(["ln_final.hook_scale"])

    def _kept(self, points: Sequence[str]) -> dict[str, Tensor]:
        with capture(self.model, points) as kept:
            self.model(self.batch.tokens, self.batch.mask, path="explicit")
        return kept

    def donors(self, pairing: Pairing) -> dict[str, Tensor]:
        """Outputs of every part in a clean pass over the sequences paired with these, wherever they stand."""
        if pairing not in self._donors:
            if pairing.n != len(self.whole):
                raise WorkbenchError(
                    "a pairing does not fit the batch", expected=f"{len(self.whole)} sequences", got=pairing.n
                )
            other = self.whole[list(pairing.donors[self.start : self.stop])]
            if bool((self.batch.mask & ~other.mask).any()):
                raise WorkbenchError(
                    "a sequence is paired with a shorter one, which has nothing to give at its last positions",
                    expected="sequences of one length",
                    got="padding",
                    next_step="Use a mean over a reference set.",
                )
            config = self.model.config
            points = [point("z", layer) for layer in range(config.n_layers)]
            points += [point("mlp_out", layer) for layer in range(config.n_layers) if config.d_mlp]
            with capture(self.model, points) as kept:
                self.model(other.tokens, other.mask, path="explicit")
            self._donors[pairing] = kept
        return self._donors[pairing]

    def puts(self, intervention: Intervention) -> list[Put]:
        """What an intervention puts in place of its parts' outputs; a cut path puts nothing in place of one.

        Raises:
            WorkbenchError: parts or places that do not exist, no part to replace (except a keep-only of everything,
                which is the clean pass), or a reference set or pairing that does not fit the batch.
        """
        targets = intervention.targets(self.model.config)
        if not targets and not isinstance(intervention, KeepOnly):
            raise WorkbenchError(
                "an intervention replaces nothing", expected="at least one head or MLP", got=repr(intervention)
            )
        if isinstance(intervention, CutPath):
            return []
        if isinstance(intervention, Joint):
            return _once([put for member in intervention.members for put in self.puts(member)])
        places = () if isinstance(intervention, KeepOnly) else intervention.at  # type: ignore[attr-defined]
        by = intervention.by if isinstance(intervention, KeepOnly) else intervention
        if isinstance(by, Mean):
            by.reference.require_fit(
                self.model.config, self.whole.mask, mlps=any(isinstance(part, Mlp) for part in targets)
            )
        return [self._put(by, part, self._mask(places)) for part in targets]

    def reached(self, intervention: Intervention) -> Bool[Tensor, " batch"]:
        """The sequences in which every value is put at a real position, and not on padding alone."""
        masks = {id(put.at): put.at for put in self.puts(intervention) if put.at is not None}
        taken = [(self.batch.mask & at).any(dim=1) for at in masks.values()]
        return torch.stack([self.batch.mask.any(dim=1), *taken]).all(dim=0)

    def _mask(self, places: tuple[Place, ...]) -> Tensor | None:
        if not places:
            return None
        if places not in self._masks:
            self._masks[places] = mask_of(places, self.batch)
        return self._masks[places]

    def _put(self, by: Intervention, part: Part, at: Tensor | None) -> Put:
        stream, head = ("z", part.head) if isinstance(part, Head) else ("mlp_out", None)
        value: Tensor | float = 0.0
        if isinstance(by, Mean):
            weight = self.model.unembed.W_U
            means = by.reference.mean_z if isinstance(part, Head) else by.reference.mean_mlp
            value = means[part.layer].to(weight.device, weight.dtype)
        elif isinstance(by, Resample):
            value = self.donors(by.pairing)[point(stream, part.layer)]
        else:
            assert isinstance(by, Zero)
        if isinstance(value, Tensor) and head is not None:
            value = value[..., head, :]
        return Put(stream, part.layer, value, at, head)

    def edits(self, intervention: Intervention) -> list[Edit]:
        """The hooks of an intervention: its puts, the paths it cuts, and what its modes hold."""
        label = str(intervention)
        edits = put_edits(self.puts(intervention), label)
        for member in intervention.members if isinstance(intervention, Joint) else (intervention,):
            if isinstance(member, CutPath):
                edits += self._cut(member)
        held = dict(self.patterns) if intervention.frozen_patterns else {}
        if intervention.frozen_norm:
            if self.model.config.norm != "pre":
                raise WorkbenchError(
                    "the final norm cannot be frozen",
                    expected="a model with a final norm (norm pre)",
                    got=f"norm {self.model.config.norm}",
                )
            held |= self.scale
        return [*edits, *(Edit(name, partial(_hold, value=value), label) for name, value in held.items())]

    def _cut(self, cut: CutPath) -> list[Edit]:
        cut.reference.require_fit(self.model.config, self.whole.mask)
        missing: dict[int, Tensor] = {}  # by layer of the senders, filled from below as the pass goes up

        def catch(z: Tensor, layer: int, heads: list[int]) -> Tensor:
            mean = cut.reference.mean_z[layer][:, heads].to(z.device, z.dtype)
            missing[layer] = torch.einsum(
                "bphk,hkd->bpd", mean - z[:, :, heads], self.model.blocks[layer].attn.W_O[heads]
            )
            return z

        def feed(x: Tensor, heads: list[int]) -> Tensor:
            edited = x.clone()
            edited[:, :, heads] += torch.stack(list(missing.values())).sum(0)[:, :, None]
            return edited

        senders, receivers = cut.ends
        edits = [
            Edit(point("z", layer), partial(catch, layer=layer, heads=heads), str(cut))
            for layer, heads in _by_layer(senders)
        ]
        edits += [
            Edit(f"blocks.{layer}.hook_{cut.kind.lower()}_input", partial(feed, heads=heads), str(cut))
            for layer, heads in _by_layer(receivers)
        ]
        return edits


def point(stream: str, layer: int) -> str:
    """The hook point of a stream that something can be put into."""
    return f"blocks.{layer}.attn.hook_z" if stream == "z" else f"blocks.{layer}.hook_{stream}"


def put_edits(puts: Sequence[Put], label: str) -> list[Edit]:
    """The hooks that put these values, one for each stream and layer, in the order of the puts within one."""
    places: dict[str, list[Put]] = {}
    for put in puts:
        places.setdefault(point(put.stream, put.layer), []).append(put)
    return [Edit(name, partial(_apply, puts=here), label) for name, here in places.items()]


def _apply(x: Tensor, puts: Sequence[Put]) -> Tensor:
    edited = x.clone()
    for put in puts:
        view = edited if put.head is None else edited[:, :, put.head]
        new = put.value if isinstance(put.value, Tensor) else view.new_tensor(put.value)
        view[:] = new if put.at is None else torch.where(put.at[..., None], new, view)
    return edited


def _hold(activation: Tensor, value: Tensor) -> Tensor:
    return value


def _by_layer(heads: Sequence[Head]) -> list[tuple[int, list[int]]]:
    return [(layer, [h.head for h in group]) for layer, group in groupby(sorted(heads), key=lambda h: h.layer)]


def _once(puts: list[Put]) -> list[Put]:
    """The puts, unless two members of a joint intervention meet at one place."""
    seen: dict[tuple[str, int, int | None], Tensor] = {}
    for put in puts:
        key = (put.stream, put.layer, put.head)
        everywhere = torch.ones((), dtype=torch.bool)
        here = everywhere if put.at is None else put.at
        if key in seen and bool((seen[key].to(here.device) & here).any()):
            name = Mlp(put.layer) if put.head is None else Head(put.layer, put.head)
            raise WorkbenchError(
                "a joint intervention replaces a part twice at one position",
                expected="each part and position in one member",
                got=str(name),
            )
        seen[key] = here if key not in seen else seen[key] | here
    return puts

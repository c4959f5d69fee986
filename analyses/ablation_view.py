"""The model in the page: heads and MLPs to switch off, and what changes at once.

The view is drawn from plain data; what it shows is computed where it is opened. Where heads are found that look things
up and copy (Olsson et al. 2022), chosen as the induction analysis chooses them, they are offered by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from analyses._induction_study import draw_probe, own_lines
from workbench import live
from workbench.analysis import Analysis, Budget, Progress
from workbench.components import Head, Mlp, all_heads, all_mlps, part_names
from workbench.config import ModelConfig
from workbench.errors import WorkbenchError
from workbench.findings import Finding, Interactive
from workbench.head_scores import HeadSets, score_heads, select_sets
from workbench.live import Preset
from workbench.model.transformer import Transformer
from workbench.probes import probe_periods
from workbench.subject import Subject
from workbench.task import Task

SECTION = "Switch heads off"


class AblationView(Analysis):
    """One interactive finding."""

    needs: ClassVar[tuple[str, ...]] = ("task",)

    def run(self, subject: Subject, budget: Budget, progress: Progress) -> Sequence[Finding]:
        """The view over at most ``live.SAMPLES`` test sequences."""
        if subject.task is None:
            raise WorkbenchError("the ablation view needs a task", next_step="Give the Subject a task.")
        progress("sequences and means")
        given = live.material(subject, n=min(live.SAMPLES, budget.samples))
        progress("presets")
        found = presets(subject.config, sets(subject, subject.task, budget.selection_samples))
        return [
            Interactive(
                id="ablation.view",
                section=SECTION,
                title="Take the model apart",
                caption=caption(given),
                payload=live.payload(given, found),
            )
        ]


def sets(subject: Subject, task: Task, samples: int = Budget.selection_samples) -> HeadSets:
    """S0 and S1, chosen as by the induction analysis; both empty where no heads can be scored."""
    if not isinstance(subject.model, Transformer):
        return HeadSets((), ())
    try:
        periods = () if own_lines(subject, task) else probe_periods(subject)
        probe = draw_probe(subject, periods, samples, "validation", "induction", "select")
        return select_sets(score_heads(subject.model, subject.vocabulary, probe))
    except WorkbenchError:
        return HeadSets((), ())


def presets(config: ModelConfig, found: HeadSets) -> list[Preset]:
    """The sets as changes, then what every model has: no head, no last layer, no MLP. None stands twice."""
    circuit = tuple(sorted({*found.s0, *found.s1}))
    every = all_heads(config.n_layers, config.n_heads)
    last = tuple(h for h in every if h.layer == config.n_layers - 1)
    others = tuple(h for h in every if h not in circuit) if circuit else ()
    offered: list[tuple[str, Sequence[Head | Mlp], str]] = [
        ("without the induction heads", found.s1, part_names(found.s1)),
        ("without the previous-token heads", found.s0, part_names(found.s0)),
        ("only the circuit", others, f"every head but {part_names(circuit)}"),
        ("without any head", every, "every head"),
        ("without the last layer's heads", last, part_names(last)),
        ("without the MLPs", all_mlps(config), "every MLP"),
    ]
    made: list[Preset] = []
    for name, parts, which in offered:
        states = {str(part): "mean" for part in parts}
        if states and all(states != earlier.states for earlier in made):
            made.append(Preset(name, f"{which} at the mean", states))
    return made


def caption(given: live.Material) -> str:
    """What the states and the score mean."""
    resample = f" Resample: its output in a paired sequence ({given.pairing.describe()})." if given.pairing else ""
    return (
        "A head's weighted values (z), or what an MLP writes, are replaced; everything after is computed anew. "
        f"Zero: by 0. Mean: by its {given.reference.describe()}.{resample} Accuracy is the share of a sequence's "
        f"scored positions where the largest logit is the answer's, averaged over {len(given.batch)} test sequences."
    )


ANALYSIS = AblationView()

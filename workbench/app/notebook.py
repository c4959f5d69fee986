"""A subject in a notebook: the ablation view as a widget (Jupyter, VS Code, marimo), and attention figures.

The widget carries the model, and the front end computes: it goes on working when the kernel is gone.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterator, Sequence

import anywidget
import traitlets
from jaxtyping import Int
from torch import Tensor

from reports import live as live_page
from reports import notebook
from workbench.app.view import interactive
from workbench.errors import WorkbenchError
from workbench.findings import Attention
from workbench.live import MOST_PARAMETERS, parameters
from workbench.subject import Subject


class AblationWidget(anywidget.AnyWidget):
    """The ablation view. ``payload`` is plain data: sequences, means, presets, weights."""

    payload = traitlets.Dict().tag(sync=True)
    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)

    def __repr__(self) -> str:
        task, model = self.payload["task"]["name"], self.payload["model"][:12]
        return f"AblationWidget({task}, model {model})"


class Shown:
    """HTML that a notebook shows, with a line of text for everything else."""

    def __init__(self, text: str, markup: str) -> None:
        self.text, self.markup = text, markup

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.markup


def view(subject: Subject) -> AblationWidget | Shown:
    """The ablation view of a subject; above 2 million parameters, how to see it instead.

    Raises:
        WorkbenchError: a subject without a task.
    """
    count = parameters(subject)
    if count > MOST_PARAMETERS:
        folder = str(subject.run.folder) if subject.run is not None else "RUN"
        command = shlex.join(["workbench", "ablate", folder])
        text = f"The model has {count:,} parameters, and a notebook carries at most {MOST_PARAMETERS:,}. "
        text += "The same view is served on this machine with: "
        return Shown(text + command, f"<p>{html.escape(text)}<code>{html.escape(command)}</code></p>")
    payload = live_page.page_data(interactive(subject).payload)
    return AblationWidget(payload=payload, _esm=notebook.module(), _css=notebook.style())


def show_attention(subject: Subject, sequences: Int[Tensor, "batch pos"] | Sequence[Sequence[str]]) -> Shown:
    """Every head's attention pattern on these sequences, as an interactive figure each.

    Args:
        sequences: token ids, or sequences as token texts (of any lengths).

    Raises:
        WorkbenchError: no sequence, an unknown token, or one that the model cannot read.
    """
    findings = list(_patterns(subject, sequences))
    if not findings:
        raise WorkbenchError("there is no attention to show", expected="at least one sequence", got="none")
    run = subject.run.hash if subject.run is not None else None
    frame = notebook.attention_frame(findings, identity={"run": run}, heading=str(subject))
    return Shown(f"Attention of {len(subject.heads)} heads on {len(findings)} sequences", frame)


def _patterns(subject: Subject, sequences: Int[Tensor, "batch pos"] | Sequence[Sequence[str]]) -> Iterator[Attention]:
    for number, sequence in enumerate(sequences):
        given = sequence[None] if isinstance(sequence, Tensor) else [sequence]
        tokens = subject.vocabulary.decode(sequence) if isinstance(sequence, Tensor) else sequence
        patterns = subject.patterns(given)[0].reshape(-1, len(tokens), len(tokens))
        yield Attention(
            id=f"attention.{number}",
            title=f"Attention, sequence {number}",
            tokens=tuple(tokens),
            patterns=tuple(tuple(map(tuple, head)) for head in patterns.tolist()),
            names=tuple(map(str, subject.heads)),
        )

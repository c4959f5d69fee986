"""The ablation view of a subject as a finding, and the page that carries it while a model is served."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reports.page import render_page
from workbench.analysis import Budget, Progress
from workbench.app.pipeline import heading
from workbench.app.settings import plugin_words
from workbench.errors import WorkbenchError
from workbench.findings import Answer, Interactive
from workbench.registry import load_analysis
from workbench.runs import Run
from workbench.subject import Subject

ANALYSIS = "ablation_view"


def silent(stage: str) -> None:
    """Progress that is not shown."""


def interactive(subject: Subject, progress: Progress = silent) -> Interactive:
    """What the analysis makes: sequences, means, presets and, for a model of at most 2 million parameters, its weights.

    Raises:
        WorkbenchError: a subject without a task.
    """
    if subject.task is None:
        raise WorkbenchError("the ablation view needs a task", next_step="Give Subject a task.")
    [finding] = load_analysis(ANALYSIS).run(subject, Budget(), progress)
    if not isinstance(finding, Interactive):
        raise TypeError(f"{ANALYSIS} made a {type(finding).__name__}")
    return finding


def served(finding: Interactive) -> Interactive:
    """The same view, asking whoever serves the page: it carries no weights."""
    return replace(finding, payload={**finding.payload, "backend": "server", "weights": None, "checks": []})


def served_page(finding: Interactive, run: Run, folder: str, plugins: Sequence[str | Path] = ()) -> str:
    """The page that ``workbench ablate`` serves."""
    words = ["workbench", "ablate", folder, *plugin_words(plugins)]
    answer = Answer(
        id="ablate",
        title="What breaks without a head?",
        text="Switch heads and MLPs off and see at once what changes: where heads look, what is predicted, the score.",
    )
    return render_page(
        [answer, served(finding)],
        identity={"run": run.hash, "spec": run.spec, "execution": run.record["execution"]},
        command=shlex.join(words),
        heading=heading(run),
    )

"""``workbench ablate``: the ablation view of a run, served on this machine and computed by PyTorch."""

from __future__ import annotations

import argparse

from workbench.app.commands import _options

NAME = "ablate"
HELP = "Switch heads off in the browser: serves a run's model on this machine until Ctrl-C."
KEPT = "{run_folder} is unchanged; the page is no longer served."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and where and how the page is shown."""
    parser.add_argument("run_folder", metavar="RUN", help="a run folder that workbench train made")
    parser.add_argument("--port", metavar="N", type=int, default=0, help="of 127.0.0.1 (default: any free one)")
    parser.add_argument("--no-open", action="store_true", help="print the address and open no browser")
    _options.plugins(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve the page; ends with Ctrl-C."""
    from workbench.app import server

    with server.listen(arguments.port) as listening:
        import torch

        from workbench.app.answers import Answers
        from workbench.app.pipeline import open_subject
        from workbench.app.stages import shown
        from workbench.app.view import interactive, served_page
        from workbench.live import MOST_PARAMETERS, parameters
        from workbench.runs import open_run
        from workbench.training.execution import use_threads

        opened = open_run(arguments.run_folder)
        subject = open_subject(opened, arguments.plugins)
        # A small model is quicker on one thread, and its numbers are then those of the report to the last digit.
        threads = 1 if parameters(subject) <= MOST_PARAMETERS else torch.get_num_threads()
        with use_threads(threads):
            with shown() as stage:
                view = interactive(subject, stage)
            page = served_page(view, opened, arguments.run_folder, arguments.plugins)
            answers = Answers(subject, view.payload["samples"]["n"])
            site = server.Server(answers, page, listening, opens=not arguments.no_open)
            on = "1 CPU thread" if threads == 1 else f"{threads} CPU threads"
            print(f"{site.url}\nserved on this machine alone, computed on {on}; Ctrl-C ends it", flush=True)
            site.run()
    return 0

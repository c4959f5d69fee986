"""``workbench ablate``: the served page in a real browser, beside the library; what is refused; how it ends."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from workbench import live, training
from workbench.app import server as server_module
from workbench.app.face import open as open_run
from workbench.app.main import main
from workbench.config import ModelConfig, TrainConfig
from workbench.measure import measure, run
from workbench.metrics import sequence_accuracy
from workbench.registry import ROOT, load_task
from workbench.subject import Subject

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

Capture = pytest.CaptureFixture[str]
CELL = "[data-head='{}']"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served") / "run"
    task = load_task("repeated_tokens", {"n_ctx": 32, "d_vocab": 25, "period_min": 4, "period_max": 10})
    shape = ModelConfig(d_vocab=25, n_ctx=32, n_heads=2, d_model=16, d_mlp=24)
    training.train(task, shape, TrainConfig(steps=60, batch_size=16, lr=1e-2), 0, place)
    return place


@pytest.fixture(scope="module")
def subject(folder: Path) -> Subject:
    return open_run(folder)


@contextlib.contextmanager
def command(*words: str) -> Iterator[server_module.Server]:
    """The command in a thread, until the end of the scope; it must then end well."""
    made: list[server_module.Server] = []
    codes: list[int] = []
    patch = pytest.MonkeyPatch()
    run_server = server_module.Server.run

    def remembered(self: server_module.Server) -> None:
        made.append(self)
        run_server(self)

    patch.setattr(server_module.Server, "run", remembered)
    thread = threading.Thread(target=lambda: codes.append(main(["ablate", *words, "--no-open"])))
    thread.start()
    try:
        while not made and thread.is_alive():
            time.sleep(0.02)
        yield made[0]
    finally:
        patch.undo()
        if made:
            made[0].stop()
        thread.join(timeout=10)
    assert codes == [0]


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with command(str(folder)) as served:
        yield served.url


@dataclass
class Opened:
    """A tab and everything that went wrong in it."""

    page: Page
    troubles: list[str] = field(default_factory=list)

    def settle(self) -> None:
        self.page.locator("[data-agreement]").wait_for()
        self.page.locator("[data-score-after][aria-busy=false]").wait_for(state="attached")

    def score(self, when: str = "after") -> float:
        self.settle()
        return float(self.page.locator(f"[data-score-{when}]").text_content() or "nan")

    def click(self, head: str, times: int = 1) -> None:
        for _ in range(times):
            self.page.locator(CELL.format(head)).click()


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[Callable[[str], Opened]]:
    contexts: list[BrowserContext] = []

    def opener(address: str) -> Opened:
        contexts.append(browser.new_context())
        opened = Opened(contexts[-1].new_page())
        page, troubles, home = opened.page, opened.troubles, address.partition("#")[0]
        page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: troubles.append(str(e)))
        page.on("request", lambda r: troubles.append(r.url) if not r.url.startswith((home, "blob:", "data:")) else None)
        page.goto(address)
        return opened

    yield opener
    for context in contexts:
        context.close()


def accuracy(subject: Subject, states: dict[str, str], draw: int = 0, frozen: bool = False) -> float:
    given = live.material(subject, draw)
    change = live.intervention({"states": states, "frozen": frozen, "at": []}, given)
    if change is None:
        return float(sequence_accuracy(run(subject.model, given.batch).logits, given.batch).mean())
    return float(measure(subject, given.batch, [change])[0].ablated_accuracy.mean())


def test_the_page_is_served_and_agrees_with_the_library(
    url: str, open_tab: Callable[[str], Opened], subject: Subject
) -> None:
    tab = open_tab(url)
    assert tab.score("before") == pytest.approx(accuracy(subject, {}), abs=1e-6)
    assert tab.score() == tab.score("before")
    assert float(tab.page.locator("[data-agreement]").inner_text()) <= 1e-4
    assert "served by PyTorch" in tab.page.locator(".lv-agreement").inner_text()
    states = {}
    for head, way, clicks in (("L1.H0", "zero", 1), ("L0.H1", "mean", 2), ("L0.mlp", "resample", 3)):
        tab.click(head, clicks)
        states[head] = way
        expect(tab.page.locator(CELL.format(head))).to_have_attribute("data-state", way)
        assert tab.score() == pytest.approx(accuracy(subject, states), abs=1e-6)
    assert tab.score() < tab.score("before") - 0.02
    tab.page.locator("[data-control=frozen]").check()
    assert tab.score() == pytest.approx(accuracy(subject, states, frozen=True), abs=1e-6)
    assert tab.troubles == []


def test_new_samples_come_from_the_server(url: str, open_tab: Callable[[str], Opened], subject: Subject) -> None:
    tab = open_tab(url)
    tab.settle()
    before = tab.page.locator(".lv-tokens").inner_text()
    tab.page.get_by_role("button", name="new samples").click()
    expect(tab.page.locator(".lv-tokens")).not_to_have_text(before)
    tab.click("L1.H1")
    expect(tab.page.locator("[data-score-after][aria-busy=false]")).to_have_text(
        f"{accuracy(subject, {'L1.H1': 'zero'}, draw=1):.6f}"
    )
    assert tab.troubles == []


def test_two_tabs_keep_their_own_state(url: str, open_tab: Callable[[str], Opened], subject: Subject) -> None:
    one, other = open_tab(url), open_tab(url)
    one.click("L1.H0")
    other.click("L0.H0", 2)
    other.page.get_by_role("button", name="new samples").click()
    other.page.wait_for_url("**#*")
    expect(one.page.locator("[data-score-after][aria-busy=false]")).to_have_text(
        f"{accuracy(subject, {'L1.H0': 'zero'}):.6f}"
    )
    expect(other.page.locator("[data-score-after][aria-busy=false]")).to_have_text(
        f"{accuracy(subject, {'L0.H0': 'mean'}, draw=1):.6f}"
    )
    one.page.reload()  # the link holds the state
    assert one.score() == pytest.approx(accuracy(subject, {"L1.H0": "zero"}), abs=1e-6)
    assert one.troubles == other.troubles == []


def test_a_model_too_large_for_a_page_is_served_too(
    folder: Path, open_tab: Callable[[str], Opened], subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_PARAMETERS", 100)
    with command(str(folder)) as served:
        assert '"weights":null' in served.page
        tab = open_tab(served.url)
        tab.click("L1.H0")
        assert tab.score() == pytest.approx(accuracy(subject, {"L1.H0": "zero"}), abs=1e-6)
        served.stop()
        deadline = time.monotonic() + 8
        while served.listening.fileno() != -1 and time.monotonic() < deadline:
            time.sleep(0.02)
        tab.click("L1.H1")
        expect(tab.page.locator(".lv-trouble")).to_contain_text("The server does not answer")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_ctrl_c_ends_it_and_leaves_nothing(folder: Path) -> None:
    before = files(folder)
    words = [sys.executable, "-m", "workbench", "ablate", str(folder), "--no-open"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address, said = process.stdout.readline().strip(), process.stdout.readline()
            match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/[\w-]{43}/", address)
            assert match, address
            assert said == "served on this machine alone, computed on 1 CPU thread; Ctrl-C ends it\n"
            port = int(match[1])
            with socket.create_connection(("127.0.0.1", port), timeout=10) as idle:
                idle.sendall(b"GET /" + address.split("/")[3].encode() + b"/ HTTP/1.1\r\n")  # and no more
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=15)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == f"interrupted: {folder} is unchanged; the page is no longer served."
    assert "Traceback" not in errors
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    assert files(folder) == before


def unfinished(folder: Path) -> None:
    (folder / "run.json").unlink()
    (folder / "resume").mkdir()
    (folder / "resume" / "spec.json").write_text("{}")


def damaged(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def of_another_task(folder: Path) -> None:
    path = folder / "run.json"
    record = json.loads(path.read_text())
    record["spec"]["task"]["name"] = "absent"
    path.write_text(json.dumps(record))


SPOILED = [
    (shutil.rmtree, "is not a run folder"),
    (unfinished, "is an unfinished run"),
    (damaged, "model.safetensors"),
    (of_another_task, "run.json"),
]


@pytest.mark.parametrize(("spoil", "named"), SPOILED, ids=[spoil.__name__ for spoil, _ in SPOILED])
def test_a_folder_that_cannot_be_served(
    folder: Path, tmp_path: Path, capsys: Capture, spoil: Callable[[Path], None], named: str
) -> None:
    spoil(Path(shutil.copytree(folder, tmp_path / "run")))
    assert main(["ablate", str(tmp_path / "run"), "--no-open"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert re.search(named, line), line


def test_ports_that_cannot_be_served(folder: Path, capsys: Capture) -> None:
    with server_module.listen(0) as taken:
        for port, code, said in (
            (str(taken.getsockname()[1]), 1, "cannot be used: got Address already in use. Name another"),
            ("65536", 1, "--port cannot be used: expected 0 (any free one) to 65535, got 65536"),
            ("-1", 1, "--port cannot be used"),
            ("http", 2, "invalid int value"),
        ):
            assert main(["ablate", str(folder), "--no-open", "--port", port]) == code
            assert said in capsys.readouterr().err


def test_the_port_that_was_asked_for_is_used(folder: Path) -> None:
    with server_module.listen(0) as free:
        port = free.getsockname()[1]
    with command(str(folder), "--port", str(port)) as served:
        assert served.url.startswith(f"http://127.0.0.1:{port}/")
        assert not served.opens

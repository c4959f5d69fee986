"""The loopback server over real sockets: who is answered, what is refused, how work stops, what is left."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests import small_models
from workbench.app import server as server_module
from workbench.app.answers import Answers
from workbench.app.questions import Question
from workbench.app.server import MOST_BYTES, Server, listen
from workbench.errors import WorkbenchError

PAGE = "<!doctype html><title>served</title>"
NOTHING = {"states": {}, "frozen": False, "at": []}
SCORE = {"id": 1, "kind": "score", "change": NOTHING}


@contextlib.contextmanager
def serving(answers: Any) -> Iterator[Server]:
    made = Server(answers, PAGE, listen(0))
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join(timeout=10)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def site() -> Iterator[Server]:
    with serving(Answers(small_models.subject({"d_mlp": 12}, padded=False), 8)) as made:
        yield made


def port_of(site: Server) -> int:
    return int(site.url.split(":")[2].partition("/")[0])


def ask(
    site: Server, method: str = "POST", path: str | None = None, body: Any = None, **changed: str | None
) -> tuple[int, dict[str, str], list[Any]]:
    """Status, headers (lower case) and the reply's JSON lines (or its text); a header that is None is left out."""
    port = port_of(site)
    sent: dict[str, str | None] = {"Host": f"127.0.0.1:{port}"}
    if method == "POST":
        sent |= {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in changed.items()}
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(method, path or f"/{site.token}/message", skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        if data is not None and "Content-Length" not in sent:
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        reply = connection.getresponse()
        text = reply.read().decode()
        headers = {name.lower(): value for name, value in reply.getheaders()}
        json_lines = "json" in headers.get("content-type", "")
        return reply.status, headers, [json.loads(line) for line in text.splitlines()] if json_lines else [text]
    finally:
        connection.close()


def test_the_page_stands_behind_the_token(site: Server) -> None:
    status, headers, [text] = ask(site, "GET", f"/{site.token}/")
    assert (status, text) == (200, PAGE)
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "server" not in headers
    assert ask(site, "GET", f"/{site.token}/", Host=f"localhost:{port_of(site)}")[0] == 200
    assert len(site.token) >= 40
    with listen(0) as listening:
        assert Server(Slow(), PAGE, listening).token != site.token


def test_it_listens_on_this_machine_alone(site: Server) -> None:
    assert site.listening.getsockname()[0] == "127.0.0.1"


def test_a_question_is_answered_in_lines(site: Server) -> None:
    status, headers, found = ask(site, body=SCORE)
    assert status == 200
    assert headers["content-type"].startswith("application/x-ndjson")
    assert headers["cache-control"] == "no-store"
    assert found[-1]["id"] == 1
    assert found[-1]["result"]["done"] == 8
    assert ask(site, body={"id": 2, "kind": "load"})[2] == [{"id": 2, "result": {}}]
    assert ask(site, body={"id": 3, "kind": "agreement"})[2][0]["result"]["difference"] < 1e-4


def test_a_fault_of_the_question_is_one_line(site: Server) -> None:
    change = {**NOTHING, "states": {"L5.H0": "zero"}}
    status, _, found = ask(site, body={"id": 4, "kind": "score", "change": change})
    assert status == 200
    [line] = found
    assert line["id"] == 4
    assert "unknown part 'L5.H0'" in line["error"]


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("no token", {"method": "GET", "path": "/"}, 404, "Not Found"),
    ("no token to ask", {"path": "/message", "body": SCORE}, 404, "Not Found"),
    ("no token, a name", {"method": "GET", "path": "/favicon.ico"}, 404, "Not Found"),
    ("token without its slash", {"method": "GET", "path": "/{token}"}, 404, "Not Found"),
    ("wrong token", {"method": "GET", "path": "/" + "x" * 43 + "/"}, 404, "ends in a token"),
    ("wrong token to ask", {"path": "/x/message", "body": SCORE}, 404, "ends in a token"),
    ("not ASCII", {"method": "GET", "path": "/%C3%A9%00/"}, 404, "ends in a token"),
    ("climbing path", {"method": "GET", "path": "/../../etc/passwd"}, 404, "Not Found"),
    ("foreign host", {"body": SCORE, "Host": "evil.example"}, 403, "this machine alone"),
    ("foreign host, same port", {"body": SCORE, "Host": "evil.example:{port}"}, 403, "this machine alone"),
    (
        "host with another port",
        {"method": "GET", "path": "/{token}/", "Host": "127.0.0.1:1"},
        403,
        "this machine alone",
    ),
    ("no port", {"method": "GET", "path": "/{token}/", "Host": "localhost"}, 403, "this machine alone"),
    ("foreign origin", {"body": SCORE, "Origin": "http://evil.example"}, 403, "the served page alone"),
    ("null origin", {"body": SCORE, "Origin": "null"}, 403, "the served page alone"),
    ("no origin", {"body": SCORE, "Origin": None}, 403, "the served page alone"),
    ("secure origin", {"body": SCORE, "Origin": "https://127.0.0.1:{port}"}, 403, "the served page alone"),
    ("form", {"body": SCORE, "Content-Type": "text/plain"}, 415, "application/json"),
    ("no type", {"body": SCORE, "Content-Type": None}, 415, "application/json"),
    ("not JSON", {"body": b"score"}, 400, "not JSON"),
    ("empty", {"body": b""}, 400, "not JSON"),
    ("unknown kind", {"body": {"id": 1, "kind": "shell"}}, 400, "got 'shell'"),
    ("path in a field", {"body": {"id": 1, "kind": "load", "run": "/etc/passwd"}}, 400, "no field 'run'"),
    ("another method", {"method": "PUT", "body": SCORE}, 405, "Method Not Allowed"),
    ("asking by GET", {"method": "GET"}, 405, "Method Not Allowed"),
]


@pytest.mark.parametrize(("request_", "status", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_who_is_refused(site: Server, request_: dict[str, Any], status: int, message: str) -> None:
    filled = {
        name: value.format(port=port_of(site), token=site.token) if isinstance(value, str) else value
        for name, value in request_.items()
    }
    got, headers, found = ask(site, **{name.replace("-", "_"): value for name, value in filled.items()})
    assert got == status
    [line] = found
    assert list(line) == ["error"]
    assert message in line["error"]
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["connection"] == "close"
    assert ask(site, body={"id": 2, "kind": "load"})[0] == 200


def head_of(site: Server, *more: str) -> bytes:
    port = port_of(site)
    lines = [
        f"POST /{site.token}/message HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Origin: http://127.0.0.1:{port}",
        "Content-Type: application/json", *more, "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize("size", [MOST_BYTES + 1, 100 * 2**20])
def test_a_large_body_is_refused_before_it_is_sent(site: Server, size: int) -> None:
    with socket.create_connection(("127.0.0.1", port_of(site)), timeout=10) as client:
        client.sendall(head_of(site, f"Content-Length: {size}"))
        reply = b""
        while part := client.recv(4096):
            reply += part
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"].startswith("the request is too large")


def test_the_largest_body_is_read(site: Server) -> None:
    assert ask(site, body=b'{"id": 2, "kind": "load"}'.ljust(MOST_BYTES))[2] == [{"id": 2, "result": {}}]


def test_a_body_without_a_length_is_not_read_to_its_end(site: Server) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", port_of(site)), timeout=10) as client:
        client.sendall(head_of(site, "Transfer-Encoding: chunked"))
        sent = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(1600):  # 100 MB
                client.sendall(chunk)
                sent += 0x10000
        reply = b""
        with contextlib.suppress(ConnectionError):
            reply = client.recv(4096)
    assert sent < 50 * 2**20
    assert not reply or reply.startswith(b"HTTP/1.1 413 ")
    assert ask(site, body={"id": 2, "kind": "load"})[0] == 200


def test_who_leaves_while_sending_breaks_nothing(site: Server, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", port_of(site)), timeout=10) as client:
        client.sendall(head_of(site, "Content-Length: 1000") + b"{")
        time.sleep(0.1)
    assert ask(site, body={"id": 2, "kind": "load"})[0] == 200
    assert capfd.readouterr().err == ""


class Slow:
    """Works in pieces of some milliseconds and never ends, but for quick questions."""

    def __init__(self) -> None:
        self.pieces = 0
        self.without_gradients = False

    def lines(self, question: Question) -> Iterator[dict[str, Any] | None]:
        if question.kind == "load":
            yield {"id": question.id, "result": {}}
            return
        if question.kind == "draw":
            raise ZeroDivisionError("a secret of the code")
        self.without_gradients = not torch.is_grad_enabled()
        while True:
            time.sleep(0.005)
            self.pieces += 1
            yield {"id": question.id, "progress": {"done": self.pieces}} if self.pieces % 10 == 0 else None


def start(site: Server) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(site), timeout=10)
    headers = {"Origin": f"http://127.0.0.1:{port_of(site)}", "Content-Type": "application/json"}
    connection.request("POST", f"/{site.token}/message", json.dumps(SCORE), headers)
    reply = connection.getresponse()
    assert json.loads(reply.readline())["progress"]["done"] % 10 == 0
    connection.reply = reply
    return connection


def until(what: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def leave(connection: http.client.HTTPConnection) -> None:
    connection.reply.close()
    connection.close()


def test_work_stops_when_the_page_leaves_and_others_are_answered_between() -> None:
    slow = Slow()
    with serving(slow) as site:
        first, second = start(site), start(site)
        assert slow.without_gradients
        assert ask(site, body={"id": 2, "kind": "load"})[2] == [{"id": 2, "result": {}}]
        leave(first)
        now = slow.pieces
        until(lambda: slow.pieces > now + 5)  # the second tab goes on
        leave(second)

        def rests() -> bool:
            now = slow.pieces
            time.sleep(0.1)
            return slow.pieces == now

        until(rests)


def test_a_fault_of_the_code_is_one_line_and_a_traceback_for_whoever_mends_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(Slow()) as site:
        status, _, found = ask(site, body={"id": 9, "kind": "draw", "draw": 1})
    assert (status, found) == (200, [{"id": 9, "error": "the server failed (ZeroDivisionError)"}])
    assert "a secret of the code" in capsys.readouterr().err


def test_stopping_ends_running_work_and_leaves_no_thread_and_no_socket() -> None:
    slow, before = Slow(), set(threading.enumerate())
    with serving(slow) as site:
        start(site)
        port = port_of(site)
        stopped = time.monotonic()
    assert time.monotonic() - stopped < server_module.CLOSING_SECONDS
    assert set(threading.enumerate()) == before
    assert site.listening.fileno() == -1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    listen(port).close()


def test_ports_that_cannot_be_used() -> None:
    for port in (-1, 65536, 10**12):
        with pytest.raises(WorkbenchError, match=f"--port cannot be used: expected 0 .* to 65535, got {port}"):
            listen(port)
    with listen(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorkbenchError, match=f"port {port} cannot be used: got Address already in use"):
            listen(port)


class _Window:
    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, url: str) -> None:
        self.opened.append(url)


def test_the_browser_is_opened_if_it_has_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    window = _Window()
    monkeypatch.setattr(webbrowser, "get", lambda: window)
    made = Server(Slow(), PAGE, listen(0), opens=True)
    thread = threading.Thread(target=made.run)
    thread.start()
    until(lambda: window.opened == [made.url])
    made.stop()
    thread.join(timeout=10)
    assert not thread.is_alive()

    terminal = webbrowser.GenericBrowser("false")
    monkeypatch.setattr(webbrowser.GenericBrowser, "open", lambda self, url: pytest.fail("held the terminal"))
    monkeypatch.setattr(webbrowser, "get", lambda: terminal)
    server_module._show(made.url)

    def none() -> None:
        raise webbrowser.Error("no browser")

    monkeypatch.setattr(webbrowser, "get", none)
    server_module._show(made.url)

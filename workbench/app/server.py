"""The loopback server of the ablation page: one page, one address to ask, both behind a random token.

It listens on 127.0.0.1 alone. Every request must name this host (a foreign name that was made to point here is
refused), questions must come from the page itself (``Origin``), and no request names a file. Bodies are bounded; what
is wrong is one JSON line. One thread computes, piece by piece, so a page that leaves stops its work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import threading
import traceback
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from workbench.app import words
from workbench.app.questions import Question, Unreadable, read
from workbench.errors import WorkbenchError

HOST = "127.0.0.1"
MOST_BYTES = 2**20
TOKEN_BYTES = 32
CLOSING_SECONDS = 2
"""How long requests that run when the server ends are waited for."""

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
PAGE_POLICY = "frame-ancestors 'none'"  # what only a header can say; the page itself carries the rest of its policy
OTHER_POLICY = "default-src 'none'; frame-ancestors 'none'"
DONE = object()


@runtime_checkable
class Answering(Protocol):
    """Whoever answers questions line by line; None is a pause between two pieces of work."""

    def lines(self, question: Question) -> Iterator[dict[str, Any] | None]:
        """The reply."""


def listen(port: int) -> socket.socket:
    """A socket that listens on this machine alone; port 0 is any free one.

    Raises:
        WorkbenchError: a port that does not exist, is in use, or is not ours to use.
    """
    if not 0 <= port <= 65535:
        raise WorkbenchError("--port cannot be used", expected="0 (any free one) to 65535", got=port)
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise WorkbenchError(
            f"port {port} cannot be used",
            got=os.strerror(error.errno) if error.errno else error,
            next_step="Name another, or leave --port out.",
        ) from error


class Server:
    """The page of one model, served until it is stopped.

    Args:
        answers: answers the page's questions. page: the HTML. listening: of :func:`listen`; closed when serving ends.
        opens: whether to show the page in a browser.
    """

    def __init__(self, answers: Answering, page: str, listening: socket.socket, *, opens: bool = False) -> None:
        self.answers, self.page, self.listening, self.opens = answers, page, listening, opens
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        port = listening.getsockname()[1]
        self.url = f"http://{HOST}:{port}/{self.token}/"
        # A browser leaves the number of the usual port out.
        self.hosts = {
            f"{name}{end}" for name in (HOST, "localhost") for end in (f":{port}", *([""] if port == 80 else []))
        }
        config = uvicorn.Config(
            self._application(), loop="asyncio", http="h11", ws="none", lifespan="off", interface="asgi3",
            log_config=None, log_level="error", access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=CLOSING_SECONDS,
        )  # fmt: skip
        self._uvicorn = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until :meth:`stop`, or until Ctrl-C, which is raised again once everything is closed."""
        with (
            self.listening,
            ThreadPoolExecutor(1, "ablate") as self._worker,
            ThreadPoolExecutor(1, "browser") as window,
            _interruptions(self.stop) as asked,
        ):
            if self.opens:
                window.submit(_show, self.url)
            self._uvicorn.run(sockets=[self.listening])
        if asked:
            raise KeyboardInterrupt

    def stop(self) -> None:
        """End serving, from another thread."""
        self._uvicorn.should_exit = True

    def _application(self) -> FastAPI:
        app = FastAPI(openapi_url=None, redirect_slashes=False)
        app.add_middleware(_Guard, server=self)
        app.add_exception_handler(StarletteHTTPException, _refusal)
        app.add_exception_handler(ClientDisconnect, _nobody)

        @app.get("/{token}/")
        async def page(token: str) -> Response:
            self._require(token)
            return HTMLResponse(self.page, headers={"Content-Security-Policy": PAGE_POLICY})

        @app.post("/{token}/message")
        async def message(token: str, request: Request) -> Response:
            self._require(token)
            if request.headers.get("origin") not in {f"http://{host}" for host in self.hosts}:
                raise HTTPException(403, "questions are taken from the served page alone")
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise HTTPException(415, "the request's Content-Type must be application/json")
            try:
                question = read(await _body(request))
            except Unreadable as error:
                raise HTTPException(400, str(error)) from error
            return StreamingResponse(self._reply(question), media_type="application/x-ndjson")

        return app

    def _require(self, token: str) -> None:
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            raise HTTPException(404, "nothing is served here: the printed address ends in a token")

    async def _reply(self, question: Question) -> AsyncIterator[str]:
        """The lines of a reply. Cancelled where the page leaves; then no further piece is computed."""
        lines, loop = self.answers.lines(question), asyncio.get_running_loop()
        while not self._uvicorn.should_exit:
            line = await loop.run_in_executor(self._worker, _step, lines, question.id)
            if line is DONE:
                return
            if line is not None:
                yield json.dumps(line) + "\n"


@contextlib.contextmanager
def _interruptions(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM stop instead of raising, which asyncio does not bear at any moment; those that came."""
    asked: list[int] = []

    def note(number: int, _frame: object) -> None:
        asked.append(number)
        stop()

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _step(lines: Iterator[dict[str, Any] | None], number: int) -> Any:
    """One piece of work: a line, None, or ``DONE``; what goes wrong is a line too."""
    try:
        with torch.no_grad():
            return next(lines, DONE)
    except Exception as error:
        known = error if isinstance(error, WorkbenchError) else words.refused(error)
        if known is None:
            traceback.print_exception(error, file=sys.stderr)
        return {"id": number, "error": str(known) if known else f"the server failed ({type(error).__name__})"}


async def _body(request: Request) -> bytes:
    """The body, unless it is too large: then it is not read to its end, nor at all where its length is said."""
    too_large = HTTPException(413, f"the request is too large: expected at most {MOST_BYTES} bytes")
    if int(request.headers.get("content-length", 0)) > MOST_BYTES:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise too_large
    return bytes(body)


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # the client has left; nobody reads it


class _Guard:
    """Refuses requests for another host, and puts the headers on every reply."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app, self.server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Content-Security-Policy", OTHER_POLICY)
                if message["status"] >= 400:  # a body that was refused is not waited for
                    headers["Connection"] = "close"
            await send(message)

        if Headers(scope=scope).get("host") not in self.server.hosts:
            refusal = JSONResponse({"error": "this server answers on this machine alone, under its own address"}, 403)
            await refusal(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)


def _show(url: str) -> None:
    """The page in the user's browser, unless that is one that would hold the terminal."""
    with contextlib.suppress(webbrowser.Error):
        browser = webbrowser.get()
        if type(browser) is not webbrowser.GenericBrowser:
            browser.open(url)

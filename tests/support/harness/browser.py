"""Headless Chromium on pages of a folder, which an HTTP server on loopback serves."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from support.harness.debian import Program, debian_program

CHROMIUM = "usr/lib/chromium/chromium"
# Of a browser that needs nothing but the page: no other host is asked for anything.
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
SIZE = (1280, 900)
"""Width and height of the window in pixels."""


def chromedriver() -> Program:
    """What starts the browser. Unavailable says why there is none."""
    return debian_program("chromium-driver", "usr/bin/chromedriver")


@contextlib.contextmanager
def browsing(driver: Program) -> Iterator[Chrome]:
    """A browser, which ends with the block."""
    options = ChromeOptions()
    installed = shutil.which("chromium")
    root = Path(driver.path).parents[2]
    options.binary_location = installed or str(root / CHROMIUM)
    for argument in (*ARGUMENTS, "--window-size={},{}".format(*SIZE)):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
    environment = driver.environment | {"no_proxy": "127.0.0.1"}
    service = ChromeService(driver.path, env=environment, log_output=os.devnull)
    browser = Chrome(options=options, service=service)
    try:
        yield browser
    finally:
        browser.quit()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed of a request."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server of the folder's files, which ends with the block."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()

"""The documentation's site, and headless Chromium on it."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from support.harness.debian import Program, debian_program
from support.sockets.http_server import HttpServer

ROOT = Path(__file__).resolve().parents[3]
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
WIDTHS = (1300, 400)
"""Widths of a laptop's window and of a telephone, in pixels."""
HEIGHT = 900


def chromedriver() -> Program:
    """Return the program that starts the browser. Unavailable says why there is no such program."""
    return debian_program("chromium-driver", "usr/bin/chromedriver")


@contextlib.contextmanager
def browsing(driver: Program) -> Iterator[Chrome]:
    """A browser, which ends with the block."""
    options = ChromeOptions()
    installed = shutil.which("chromium")
    root = Path(driver.path).parents[2]
    options.binary_location = installed or str(root / CHROMIUM)
    for argument in (*ARGUMENTS, f"--window-size={WIDTHS[0]},{HEIGHT}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
    environment = driver.environment | {"no_proxy": "127.0.0.1"}
    service = ChromeService(driver.path, env=environment, log_output=os.devnull)
    browser = Chrome(options=options, service=service)
    try:
        yield browser
    finally:
        browser.quit()


def set_width(browser: Chrome, width: int) -> None:
    """Show pages as in a window of this width. A window of its own is never as narrow as 400."""
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def build_site(folder: Path) -> None:
    """The documentation as `make docs` builds it. CalledProcessError when a link is broken."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True)


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server of the folder's files, which ends with the block."""
    with HttpServer(functools.partial(_Files, directory=str(folder))) as server:
        yield f"http://{server.address}"

"""Death of the whole broker, or a pause of it, as a rule wants it."""

from __future__ import annotations

import os
import signal
import time

from broker_sim.server.faults.rules import FaultRule


def fail_before(rule: FaultRule) -> None:
    """Fail before the request is carried out; a broker that is killed does not return."""
    if rule.kill and not rule.drop_response:
        os.kill(os.getpid(), signal.SIGKILL)
    if rule.pause_ms:
        # One thread runs everything: nothing of the broker moves meanwhile, as after SIGSTOP.
        time.sleep(rule.pause_ms / 1000)


def fail_after(rule: FaultRule) -> None:
    """Fail when the request was carried out and is durable."""
    if rule.kill:
        os.kill(os.getpid(), signal.SIGKILL)

"""kcat, the C command line client, of Debian's package."""

from __future__ import annotations

import functools
import subprocess
from dataclasses import dataclass

from support.brokers.probe import wait_until
from support.harness.debian import debian_program

RUN_TIMEOUT_S = 600
LEADER_MOVED = "offsets_for_times failed: Broker: Not leader for partition"


@dataclass(frozen=True)
class Kcat:
    """The program and the environment it runs in."""

    program: str
    environment: dict[str, str]

    def run(
        self, bootstrap: str, *arguments: str, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end against a broker. AssertionError with its words when it fails."""
        command = [self.program, "-b", bootstrap, "-m", "60", *arguments]
        done = subprocess.run(
            command,
            check=False,
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=RUN_TIMEOUT_S,
        )
        if check:
            _check(done)
        return done

    def output(self, bootstrap: str, *arguments: str) -> str:
        """Return the output of a `run` that only reads. With several brokers, run again if a leader
        moved while kcat asked for the offset of a time: librdkafka hands that error to kcat, which
        ends."""
        done: list[subprocess.CompletedProcess[str]] = []

        def has_ended() -> bool:
            done.append(self.run(bootstrap, *arguments, check=False))
            return LEADER_MOVED not in done[-1].stderr or "," not in bootstrap

        wait_until(has_ended, "the leader")
        _check(done[-1])
        return done[-1].stdout


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise AssertionError(f"{done.args} ended with {done.returncode}: {done.stderr}")


@functools.cache
def kcat() -> Kcat:
    """Return a kcat that runs here. Unavailable says why it cannot be had."""
    program = debian_program("kcat", "usr/bin/kcat")
    return Kcat(program.path, program.environment)

"""Disturbances: each is a function on a `Stage` that runs one wave, and breaks it in its way.

It returns what it did, in words of the report. It raises NotReached if the job never comes to what
it breaks.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from txnlog_testing.failpoints import ALL_STEPS
from txnlog_testing.prove.checkpoint import COMMITS, OFFSETS
from txnlog_testing.prove.stage import NotReached, Stage

PAUSE_MS = 3_000
PLANNED = f"{OFFSETS}/*"
"""File of a checkpoint that appears when a batch is planned."""
KILL_AT = "kill at "
REQUESTS = ("EndTxn", "Produce", "Fetch")
"""Requests that a broker is broken at: the first of them that the job sends."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Disturbance by its name; `break_wave` runs the disturbed wave."""

    name: str
    break_wave: Callable[[Stage], str]
    needs_driver: bool = False
    """True if it takes a Spark of its own."""
    step: str = ""
    """Step at which it strikes, as `step:when`: a job that does not reach it is not run."""
    may_refuse: bool = False
    """True if a job that then refuses to go on does right: a person has to decide."""


def nothing(stage: Stage) -> str:
    """Run a wave as it is."""
    stage.run()
    return "a second run without a disturbance"


def replay(stage: Stage) -> str:
    """Leave what a driver leaves that dies between the sink's commit and Spark's."""
    stage.run()
    taken = stage.world.checkpoints.take_last(COMMITS)
    if not taken:
        raise NotReached("a checkpoint with commits")
    stage.run()
    return f"{' and '.join(taken)} taken out, started again"


def lost_tail(stage: Stage) -> str:
    """Leave what a power failure leaves of a checkpoint that was not on the disk yet."""
    stage.run()
    checkpoints = stage.world.checkpoints
    taken = [*checkpoints.take_last(COMMITS), *checkpoints.take_last(OFFSETS)]
    if not taken:
        raise NotReached("a checkpoint with offsets")
    stage.run()
    return f"{' and '.join(taken)} lost, started again"


def old_backup(stage: Stage) -> str:
    """Put back the checkpoint of before the wave."""
    backup = stage.world.folder / "backup"
    stage.world.checkpoints.back_up(backup)
    stage.run()
    stage.world.checkpoints.restore(backup)
    stage.run()
    return "checkpoint of before the wave put back, started again"


def kill_in_tasks(stage: Stage) -> str:
    """Kill the driver at a moment of the batch that the seed chooses."""
    seconds = stage.random.uniform(0.1, 0.9) * stage.wave_seconds
    stage.drivers.give_up(stage.begun(PLANNED, seconds))
    stage.run()
    return f"driver killed {seconds:.2f} s after offsets/N appeared"


def kill_worker(stage: Stage) -> str:
    """Kill a Python worker that begins a task; Spark tries the task again."""
    run = stage.begin("worker:before:kill-self", victim=True)
    outcome = stage.end(run)
    fired = bool(run.fired())
    if not outcome.died:
        stage.drivers.give_up(run)
    if not fired:
        raise NotReached("a task in a Python worker")
    stage.run()
    return "a Python worker killed as its task began"


def kill_step(step: str) -> Disturbance:
    """Return the disturbance that kills the driver before or after a step, as `step:when`."""

    def break_wave(stage: Stage) -> str:
        stage.kill_at(step)
        stage.run()
        return f"driver killed {' '.join(reversed(step.split(':')))}"

    return Disturbance(f"kill {step}", break_wave, needs_driver=True, step=step)


def kill_at(files: str) -> Disturbance:
    """Return the disturbance that kills the driver when such a file of a checkpoint appears."""

    def break_wave(stage: Stage) -> str:
        stage.drivers.give_up(stage.begun(files))
        stage.run()
        return f"driver killed when {files} appeared"

    return Disturbance(KILL_AT + files, break_wave, needs_driver=True)


def broker_request(stage: Stage) -> str:
    """Return the request at which the broker is broken. Raises NotReached if there is none."""
    for request in REQUESTS:
        if stage.requests.get(request):
            return request
    raise NotReached(f"a request of {', '.join(REQUESTS)}")


def broker_killed(stage: Stage, *, after: bool) -> str:
    """Kill the broker when the request comes, or when it was carried out; start it again."""
    request = broker_request(stage)
    cluster = stage.world.cluster
    cluster.fault(request, kill=True, drop_response=after)
    stage.while_running(lambda: not cluster.is_running(), cluster.start)
    return f"broker killed {'after' if after else 'before'} {request}, and started again"


def broker_paused(stage: Stage) -> str:
    """Let the broker stand still when the request comes."""
    request = broker_request(stage)
    _run_with_fault(stage, request, pause_ms=PAUSE_MS)
    return f"broker paused for {PAUSE_MS / 1000:g} s at {request}"


def _run_with_fault(stage: Stage, request: str, **rule: Any) -> None:
    """Run the wave with a rule of faults. Raises NotReached if the rule has not struck."""
    with stage.world.cluster.fault(request, **rule) as fault:
        stage.run()
        if not fault.fired:
            raise NotReached(f"{request} in this wave")


def answer_lost(stage: Stage) -> str:
    """Carry out the request, and close the connection in the place of an answer."""
    request = broker_request(stage)
    _run_with_fault(stage, request, drop_response=True, disconnect=True)
    return f"{request} carried out, its answer lost"


def produce_refused(stage: Stage) -> str:
    """Refuse two writes with an error that clients retry."""
    if not stage.requests.get("Produce"):
        raise NotReached("a request of Produce")
    _run_with_fault(stage, "Produce", error="NOT_ENOUGH_REPLICAS", times=2)
    return "Produce answered with NOT_ENOUGH_REPLICAS twice"


def two_drivers(stage: Stage) -> str:
    """Pause a driver in a batch, let a second one do the wave, and let the first go on."""
    first = stage.begun(PLANNED)
    try:
        first.signal(signal.SIGSTOP)
        stage.run()
        first.signal(signal.SIGCONT)
        outcome = first.wait(stage.seconds_max)
    finally:
        stage.drivers.give_up(first)
    said = "ended well" if outcome is None or not outcome.error else f"ended: {outcome.error}"
    return f"a second driver did the wave while the first was paused, which then {said[:120]}"


TWICE = "twice"
ALWAYS = (
    Disturbance(TWICE, nothing),
    Disturbance("replay", replay),
    Disturbance("lost tail", lost_tail, may_refuse=True),
    Disturbance("old backup", old_backup, may_refuse=True),
    kill_at(PLANNED),
    Disturbance("kill in tasks", kill_in_tasks, needs_driver=True),
    Disturbance("kill worker", kill_worker, needs_driver=True),
    Disturbance("broker killed before", partial(broker_killed, after=False)),
    Disturbance("broker killed after", partial(broker_killed, after=True)),
    Disturbance("broker paused", broker_paused),
    Disturbance("answer lost", answer_lost),
    Disturbance("produce refused", produce_refused),
    Disturbance("two drivers", two_drivers, needs_driver=True),
)
CHOSEN_STEPS = ("write:after", "produce.first:after", "end_txn:after", "commit_log:before")
"""Steps at which a driver is killed unless the user names others: between two writes of a
foreachBatch, in an open transaction, after its end, and before Spark's own note of it."""


def find_disturbance(name: str) -> Disturbance:
    """Return the disturbance of this name. Raises ValueError."""
    for each in ALWAYS:
        if each.name == name:
            return each
    files = name.removeprefix(KILL_AT).strip()
    if name.startswith(KILL_AT) and files and not files.startswith("/"):
        return kill_at(files)
    kill, _, place = name.partition(" ")
    step, _, when = place.partition(":")
    if kill == "kill" and step in ALL_STEPS and when in ("before", "after"):
        return kill_step(place)
    known = [
        *(each.name for each in ALWAYS),
        "kill at FILES",
        "kill STEP:before",
        "kill STEP:after",
    ]
    raise ValueError(
        f"disturbance {name!r} is not one of {', '.join(known)}, where STEP is one of "
        f"{', '.join(ALL_STEPS)}"
    )

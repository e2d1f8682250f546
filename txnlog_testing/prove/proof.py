"""`exactly_once(...)`: runs a job undisturbed, then breaks it in many ways, and compares."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txnlog_testing.prove.compare import DOUBLED, LOST, Difference, Row, compare
from txnlog_testing.prove.disturbances import (
    ALWAYS,
    CHOSEN_STEPS,
    REQUESTS,
    TWICE,
    Disturbance,
    find_disturbance,
    kill_step,
)
from txnlog_testing.prove.outputs import Output, Topic, pickled, read_outputs
from txnlog_testing.prove.report import (
    EXACT,
    NOT_REACHED,
    OFFSETS,
    REFUSED,
    STUCK,
    NotExactlyOnce,
    Report,
    Result,
)
from txnlog_testing.prove.stage import (
    Drivers,
    NotReached,
    Refused,
    Stage,
    Stuck,
    end_kept,
    kept_drivers,
)
from txnlog_testing.prove.world import Feed, Inputs, World

EACH_STEP = "all"
NEVER = 1_000_000_000
SLOW = 10
"""A run is late after so many times of what the reference took, and not before the timeout."""
REFERENCE_TIMEOUTS = 5
"""The reference may take so many timeouts: nothing is known yet of how fast this machine is."""

Job = Callable[..., Any] | Sequence[str]


@dataclass(frozen=True, slots=True)
class _Seen:
    """Output and offsets of a world at its end."""

    rows: list[list[Row]]
    group_offsets: Mapping[str, Mapping[Any, int]]


@dataclass(slots=True)
class _Reference:
    seen: _Seen
    steps: frozenset[str]
    requests: dict[str, int]
    wave_seconds: float
    ignored: frozenset[str]


def exactly_once(
    job: Job,
    *,
    input: Mapping[str, Sequence[Any]] | None = None,
    output: Any,
    feed: Feed | None = None,
    ignore: Collection[str] = (),
    disturbances: Collection[str] | None = None,
    steps: Collection[str] | str | None = None,
    waves: int = 3,
    partitions: int = 2,
    seed: int = 0,
    timeout_s: float = 60.0,
    spark_config: Mapping[str, str] | None = None,
    folder: Path | str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Report:
    """Run a job undisturbed, then once for each disturbance, and compare the outputs.

    `job` is a function `(spark, kafka, checkpoint)` that starts a query and returns it, or several
    in a list; or the words of a command that ends when it has read its input, with `{bootstrap}`,
    `{checkpoint}` and `{path}` in the places of what each run has for itself. `input` has rows by
    topic, in the forms that `Kafka.produce` takes; they come in `waves`, and the job runs once for
    each. `feed(kafka, wave)` makes input of other kinds. `output` is a topic, `Files(...)`, a
    function `(spark, kafka)` that returns rows, or several of them.

    `disturbances` names the ones to run (default: all). `steps` has more places to kill the driver
    at, as `step:before` or `step:after`, or is "all": each that the job comes to (default: four, if
    all disturbances are run). Columns in `ignore` are not compared. `seed` chooses the wave that is
    disturbed and the moments of kills. A run may take `timeout_s` seconds, or ten times as long as
    the undisturbed one, which may take five times `timeout_s`. Records of a key that input records
    have are compared in their order, too.

    Returns the report. Raises NotExactlyOnce, an AssertionError with the table, if any result is
    not as it should be; ValueError if there is nothing to compare or the job comes to no
    disturbance, RuntimeError if the job does not run undisturbed.
    """
    # Read the arguments, and refuse them before Spark starts.
    for name, given in {"ignore": ignore, "disturbances": disturbances, "steps": steps}.items():
        if isinstance(given, str) and (name, given) != ("steps", EACH_STEP):
            raise ValueError(f"{name}={given!r}: give a list of names")
    outputs = read_outputs(output)
    inputs = Inputs.read(input or {}, waves, partitions, feed)
    _check_inputs(inputs)
    choice = _Choice.read(disturbances, steps)
    # Run all; the drivers are kept for the next call, unless this call breaks off.
    kept = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="exactly-once-"))
    kept.mkdir(parents=True, exist_ok=True)
    drivers = kept_drivers(dict(spark_config or {}))
    proof = _Proof(job, inputs, outputs, kept, drivers, seed, timeout_s, tell or _silent)
    try:
        proof.run(choice, frozenset(ignore))
    except BaseException:
        end_kept()
        raise
    finally:
        if folder is None:
            shutil.rmtree(kept, ignore_errors=True)
    # Judge the results.
    report = Report(proof.results, seed)
    if not report.reached:
        raise ValueError(f"nothing was disturbed, so nothing is proved:\n{report.text()}")
    if not report.is_exact:
        raise NotExactlyOnce(report)
    return report


def _silent(text: str) -> None:
    del text


def _check_inputs(inputs: Inputs) -> None:
    if inputs.waves < 2:
        raise ValueError(f"waves={inputs.waves}: two at least, so that one comes before another")
    for topic, rows in inputs.rows.items():
        if len(rows) < inputs.waves:
            raise ValueError(
                f"input {topic!r} has {len(rows)} rows for {inputs.waves} waves: give more rows"
            )
    if not inputs.rows and inputs.feed is None:
        raise ValueError("there is no input: give input={topic: rows}, or feed=")


@dataclass(frozen=True, slots=True)
class _Choice:
    """Disturbances that the user wants."""

    named: tuple[Disturbance, ...]
    has_each_step: bool

    @classmethod
    def read(cls, names: Collection[str] | None, steps: Collection[str] | str | None) -> _Choice:
        """Read two arguments of `exactly_once`. Raises ValueError."""
        if steps is None:
            steps = CHOSEN_STEPS if names is None else ()
        places = () if isinstance(steps, str) else steps
        always = ALWAYS if names is None else map(find_disturbance, names)
        kills = (find_disturbance(f"kill {place}") for place in places)
        named = {each.name: each for each in (*always, *kills)}
        if not named and steps != EACH_STEP:
            raise ValueError("disturbances is empty: there is nothing to run")
        return cls(tuple(named.values()), steps == EACH_STEP)

    def disturbances(self, reached: frozenset[str]) -> list[Disturbance]:
        """Return them, with the steps that the job reaches if all are wanted."""
        places = sorted(reached) if self.has_each_step else ()
        kills = [kill_step(place) for place in places if not place.startswith("worker:")]
        return list({each.name: each for each in (*self.named, *kills)}.values())


@dataclass(slots=True)
class _Proof:
    job: Job
    inputs: Inputs
    outputs: list[Output]
    folder: Path
    drivers: Drivers
    seed: int
    timeout_s: float
    tell: Callable[[str], None]
    results: list[Result] = field(default_factory=list)
    _count: int = 0

    def run(self, choice: _Choice, ignored: frozenset[str]) -> None:
        wave = random.Random(self.seed).randrange(1, self.inputs.waves)
        reference = self._run_reference(wave, ignored)
        chosen = choice.disturbances(reference.steps)
        missed = [each for each in chosen if each.step and each.step not in reference.steps]
        for number, each in enumerate(chosen):
            if each in missed:
                happened = f"the job does not come to {each.step}"
                self.results.append(Result(each.name, happened, NOT_REACHED))
                continue
            later = (other for other in chosen[number:] if other not in missed)
            if callable(self.job) and any(other.needs_driver for other in later):
                self.drivers.prepare()
            self._try_disturbance(each, wave, reference)

    # ------------------------------------------------------------------ the reference

    def _run_reference(self, wave: int, ignored: frozenset[str]) -> _Reference:
        self.tell("reference: the job, undisturbed")
        began = time.monotonic()
        with self._new_world() as world:
            stage = self._stage(world, None)
            if callable(self.job):
                self.drivers.warm().forget_reached()
            for number in range(self.inputs.waves):
                world.feed(number)
                counters = self._count_requests(world) if number == wave else {}
                wave_began = time.monotonic()
                try:
                    stage.run()
                except (Refused, Stuck) as error:
                    raise RuntimeError(f"the job does not run undisturbed: {error}") from error
                if number == wave:
                    seconds = time.monotonic() - wave_began
                    requests = {name: counter.calls for name, counter in counters.items()}
                    world.cluster.clear_faults()
            seen = self._seen(world)
        for output, rows in zip(self.outputs, seen.rows, strict=True):
            if not rows:
                raise ValueError(
                    f"the job, undisturbed, has left nothing in {output.name!r}: there is nothing "
                    "to compare; check the name, and that the input has rows that come through"
                )
        steps = stage.reached()
        counted = ", ".join(
            f"{len(rows)} rows of {output.name}"
            for output, rows in zip(self.outputs, seen.rows, strict=True)
        )
        self.tell(f"reference: {counted} in {time.monotonic() - began:.1f} s")
        return _Reference(seen, steps, requests, seconds, ignored)

    def _count_requests(self, world: World) -> dict[str, Any]:
        return {
            name: world.cluster.fault(name, on_call=NEVER, disconnect=True) for name in REQUESTS
        }

    # ------------------------------------------------------------------ disturbances

    def _try_disturbance(self, disturbance: Disturbance, wave: int, reference: _Reference) -> None:
        self.tell(f"{disturbance.name} ...")
        began = time.monotonic()
        with self._new_world() as world:
            stage = self._stage(world, reference)
            happened, finding, detail = "", EXACT, ""
            try:
                for number in range(self.inputs.waves):
                    world.feed(number)
                    if number == wave:
                        happened = disturbance.break_wave(stage)
                    else:
                        stage.run()
            except NotReached as error:
                finding, happened = NOT_REACHED, f"the job does not come to {error}"
            except Stuck as error:
                finding, detail = STUCK, str(error)
            except Refused as error:
                finding, detail = REFUSED if disturbance.may_refuse else STUCK, str(error)
            if finding in (EXACT, REFUSED):
                finding, detail = self._judged(world, reference, disturbance, finding, detail)
            pictures = _draw(world) if finding != NOT_REACHED else []
        result = Result(
            disturbance.name,
            happened or "started again, and again",
            finding,
            detail,
            time.monotonic() - began,
            pictures,
        )
        self.results.append(result)
        self.tell(f"{disturbance.name}: {finding}" + (f" ({detail})" if detail else ""))
        world.remove()

    def _judged(
        self, world: World, reference: _Reference, disturbance: Disturbance, so_far: str, error: str
    ) -> tuple[str, str]:
        """Return finding and detail; a job that refused to go on may miss rows."""
        seen = self._seen(world)
        for output, wanted, found in zip(self.outputs, reference.seen.rows, seen.rows, strict=True):
            difference = compare(
                wanted,
                found,
                reference.ignored,
                ordered=self.inputs.keys if isinstance(output, Topic) else (),
            )
            counts = dict(difference.counts)
            if so_far == REFUSED:
                counts.pop(LOST, None)
            if counts:
                return self._named(disturbance, output, difference, counts)
        if so_far == EXACT and seen.group_offsets != reference.seen.group_offsets:
            return OFFSETS, _offsets_text(reference.seen.group_offsets, seen.group_offsets)
        return so_far, error

    def _named(
        self,
        disturbance: Disturbance,
        output: Output,
        difference: Difference,
        counts: Mapping[str, int],
    ) -> tuple[str, str]:
        finding = ", ".join(f"{count} {name}" for name, count in counts.items())
        where = f"{output.name}: " if len(self.outputs) > 1 else ""
        if disturbance.name == TWICE:
            columns = ", ".join(sorted(difference.columns)) or "rows"
            only_columns = counts.keys().isdisjoint((LOST, DOUBLED))
            what = columns if only_columns else f"{finding}; {columns}"
            finding = f"not deterministic: {what}"
        return finding, where + difference.first

    # ------------------------------------------------------------------ details

    def _new_world(self) -> World:
        self._count += 1
        topics = [each.name for each in self.outputs if isinstance(each, Topic)]
        return World(self.folder / f"world-{self._count}", self.inputs, topics)

    def _stage(self, world: World, reference: _Reference | None) -> Stage:
        job = self._pickled_job(self.job) if callable(self.job) else self.job
        chance = random.Random(f"{self.seed} {self._count}")
        stage = Stage(world, job, self.drivers, chance, REFERENCE_TIMEOUTS * self.timeout_s)
        if reference is not None:
            stage.seconds_max = max(self.timeout_s, SLOW * reference.wave_seconds)
            stage.requests = reference.requests
            stage.wave_seconds = reference.wave_seconds
        return stage

    def _pickled_job(self, function: Callable[..., Any]) -> Path:
        path = self.folder / "job"
        if not path.exists():
            path.write_bytes(pickled(function))
        return path

    def _seen(self, world: World) -> _Seen:
        rows = [each.rows(world, self.drivers.warm) for each in self.outputs]
        return _Seen(rows, world.group_offsets())


def _draw(world: World) -> list[str]:
    from txnlog_testing.timelines import draw_all

    return draw_all(world.folder / "broker")


def _offsets_text(
    reference: Mapping[str, Mapping[Any, int]], seen: Mapping[str, Mapping[Any, int]]
) -> str:
    for group in sorted({*reference, *seen}):
        wanted, found = reference.get(group, {}), seen.get(group, {})
        for place in sorted({*wanted, *found}):
            if wanted.get(place) != found.get(place):
                topic, partition = place
                return (
                    f"group {group!r} stands at {found.get(place)} of {topic}-{partition}, where "
                    f"the reference stands at {wanted.get(place)}"
                )
    return ""

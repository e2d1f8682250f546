"""Exactly-once shown on one machine: real flights, three kills, and a proof; by `make demo`.

The demo starts a broker as a process, loads the flights of 2013, and runs the streaming job over
them. While the job runs, SIGKILL ends

    1. the Spark driver in the middle of a micro-batch, with records already produced,
    2. the Spark driver after Kafka committed the batch and before Spark noted it,
    3. the broker in the middle of a transaction.

Each process is restarted from its files. With `BROKERS=3 make demo` there are three brokers with
three replicas of everything. The third kill then hits a leader: another broker takes over, and the
dead broker comes back at the end. The audit ends the demo, and its exit code is the demo's. The
moments are exact, not lucky: the failpoints (`txnlog_testing/failpoints.py`) pull the
trigger.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobs import audit
from jobs.demo_processes import ROOT, BrokerProcess, DemoFailed, Narrator, SparkJob
from jobs.flights_data import FLIGHT_COUNT
from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.metadata import require_leaders
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import TxnLogError

INPUT_TOPIC = "flights"
OUTPUT_TOPIC = "flights-enriched"
GROUP_ID = "flights-enricher"
KILLED = -9
BATCH_COUNT = 12
RUN_SECONDS_MAX = 300.0
FAILPOINT_SITE = ROOT / "txnlog_testing" / "process_site"
"""Folder on the path of the job's processes. It patches the connector, which has no failpoints
itself."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Run of the job: the armed failpoint, its title, and the exit codes that it may end with."""

    title: str
    failpoint: str = ""
    kills_broker: bool = False
    exit_codes: tuple[int, ...] = (0,)


SCENES = (
    Scene(
        "kill 1: the driver dies in the middle of micro-batch 2, after its first Produce",
        "produce.first:after:kill-driver@2",
        exit_codes=(KILLED,),
    ),
    Scene(
        "kill 2: the driver dies after Kafka committed micro-batch 5, before Spark noted it",
        "end_txn:after:kill-driver@5",
        exit_codes=(KILLED,),
    ),
    Scene(
        "kill 3: {victim} dies in the middle of micro-batch 8's transaction",
        "produce.first:after:hook:{hook}@8",
        kills_broker=True,
        exit_codes=(0, 1),
    ),
)
TO_THE_END = Scene("once more, undisturbed, to the end of the input")


class Demo:
    """Directories, the broker, and the scenes in their order."""

    def __init__(self, folder: Path, limit: int, brokers: int = 1) -> None:
        self.folder = folder
        self.limit = limit
        self.brokers = brokers
        self.narrator = Narrator()
        self.broker = BrokerProcess(folder / "broker", self.narrator, brokers)
        self._run_number = 0

    def run(self) -> int:
        """Run the whole demo; return the audit's exit code."""
        self._make_folder()
        self.broker.start()
        try:
            self.load()
            codes = [self.play(scene) for scene in SCENES]
            if codes[-1] != 0:
                self.play(TO_THE_END)
            self.broker.start()
            return self.prove()
        finally:
            self.broker.stop()

    def _make_folder(self) -> None:
        """Make an empty folder; empty the folder of an earlier demo, and leave any other folder
        alone."""
        mark = self.folder / "made-by-the-demo"
        if self.folder.exists() and any(self.folder.iterdir()) and not mark.exists():
            raise DemoFailed(f"{self.folder} has files that are not the demo's: name another --dir")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        mark.touch()

    def load(self) -> None:
        """Load the flights into the input topic, in one transaction; create an empty output
        topic."""
        self.narrator.say(f"loading {self.limit} flights into topic {INPUT_TOPIC}, 6 partitions")
        with Client(self.broker.bootstrap_servers, client_id="demo") as client:
            client.create_topic(OUTPUT_TOPIC, partitions=6)
        arguments = ["jobs/load_flights.py", "--topic", INPUT_TOPIC, "--limit", str(self.limit)]
        self._finish(self._submit(arguments, "load", {}), (0,))

    def play(self, scene: Scene) -> int:
        """Run the job with the scene's failpoint armed, and check that it had its effect.

        Return the exit code: a driver may well outlive the broker's death and go on to the end.
        """
        victim = "the broker" if self.brokers == 1 else "the leader of an output partition"
        self.narrator.say(f"== {scene.title.format(victim=victim)}")
        hook = self.folder / "hook"
        fired = self.folder / f"fired-{self._run_number}"
        environment = {"TXNLOG_FAILPOINTS_FIRED": str(fired)}
        if scene.failpoint:
            environment["TXNLOG_FAILPOINTS"] = scene.failpoint.format(hook=hook)
            path = [FAILPOINT_SITE, ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
        job = self._submit(self._job_arguments(), "job", environment)
        code = self._finish(job, scene.exit_codes, lambda: self._maybe_kill_broker(scene, hook))
        if scene.failpoint and not fired.exists():
            raise DemoFailed(f"the failpoint {scene.failpoint} was never reached: see {job.log}")
        return code

    def prove(self) -> int:
        """Run the audit over the topics that the crashes left behind; return its exit code."""
        self.narrator.say("== the audit")
        code = audit.main(
            [
                *("--bootstrap-servers", self.broker.bootstrap_servers),
                *("--input-topic", INPUT_TOPIC, "--output-topic", OUTPUT_TOPIC),
                *("--group-id", GROUP_ID, "--expect-aborted"),
                *("--json", str(self.folder / "audit.json")),
            ]
        )
        self.narrator.say("done: the proof is above" if code == 0 else f"the audit says {code}")
        return code

    def _job_arguments(self) -> list[str]:
        return [
            *("jobs/consume_transform_produce.py", "--available-now"),
            *("--input-topic", INPUT_TOPIC, "--output-topic", OUTPUT_TOPIC),
            *("--group-id", GROUP_ID, "--checkpoint", str(self.folder / "checkpoint")),
            *("--max-offsets-per-trigger", str(-(-self.limit // BATCH_COUNT))),
        ]

    def _submit(self, arguments: list[str], name: str, environment: dict[str, str]) -> SparkJob:
        self._run_number += 1
        return SparkJob(
            [*arguments, "--bootstrap-servers", self.broker.bootstrap_servers],
            environment=environment,
            log=self.folder / f"{self._run_number}-{name}.log",
            narrator=self.narrator,
            shown_as=name,
        )

    def _finish(
        self, job: SparkJob, exit_codes: tuple[int, ...], watch: Callable[[], None] = lambda: None
    ) -> int:
        try:
            code = job.wait(RUN_SECONDS_MAX, watch)
        finally:
            job.end()
        if code not in exit_codes:
            raise DemoFailed(f"exit code {code}, expected {exit_codes}: see {job.log}")
        how = "was killed" if code == KILLED else f"ended with exit code {code}"
        self.narrator.say(f"the process {how}")
        return code

    def _maybe_kill_broker(self, scene: Scene, hook: Path) -> None:
        """Kill the broker at the hook, where the driver waits inside its transaction, and start it
        again; or kill a leader and let the others go on."""
        reached, go = hook.with_suffix(".reached"), hook.with_suffix(".go")
        if not scene.kills_broker or not reached.exists() or go.exists():
            return
        if self.brokers == 1:
            self.broker.kill()
            self.narrator.say("the broker was killed inside the transaction; starting it again")
            self.broker.start()
        else:
            leader = self._leader(TopicPartition(OUTPUT_TOPIC, 0))
            self.broker.kill(leader)
            self.narrator.say(
                f"broker {leader}, leader of partition 0 of {OUTPUT_TOPIC}, was killed inside the "
                "transaction; the others go on without it"
            )
        go.touch()

    def _leader(self, partition: TopicPartition) -> int:
        with Client(self.broker.bootstrap_servers, client_id="demo") as client:
            client.run(require_leaders(client.session, [partition]))
            return client.session.cluster.leader(partition)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; exit with a usage line if it is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", default="demo-data", help="folder of all files; emptied first")
    parser.add_argument(
        "--limit", type=int, default=FLIGHT_COUNT, help="use only the first LIMIT flights"
    )
    parser.add_argument("--brokers", type=int, default=1, help="1, or at least 3 with a registry")
    args = parser.parse_args(argv)
    if args.brokers < 1 or args.brokers == 2:
        parser.error("--brokers is 1, or at least 3: several brokers keep three replicas")
    return args


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return the audit's exit code, 1 if the demo failed before."""
    args = parse_args(argv)
    try:
        return Demo(Path(args.dir).resolve(), args.limit, args.brokers).run()
    except (DemoFailed, TxnLogError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

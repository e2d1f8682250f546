"""Run one member of a consumer group in a process of its own, so that a test can kill it.

    python member.py CLIENT BOOTSTRAP GROUP SOURCE SETTINGS [TARGET TRANSACTIONAL_ID TIMEOUT_MS]

With a TARGET the member copies records there, in transactions that carry their offsets; else it
commits the offsets it got. It prints JSON: "ready", "assigned" whenever its partitions change,
"got" with the partition and offset of each record, and "committed", "refused" or "aborted". If it
reads "close", it leaves the group and prints "closed". If it reads "stall", it prints "stalled" in
the middle of its next transaction, with everything sent and nothing committed, and waits there to
be killed.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from support.clients.adapter import Client, Reader, Record, Writer
from support.clients.libraries import client_of

orders: list[str] = []


def tell(name: str, **fields: object) -> None:
    """Print at once."""
    print(json.dumps({"name": name} | fields), flush=True)


def ends(records: list[Record]) -> dict[tuple[str, int], tuple[int, str]]:
    """Return the offsets after the delivered records, by partition: a bare commit would include
    partitions that were assigned meanwhile."""
    return {(each.topic, each.partition): (each.offset + 1, "") for each in records}


def copy(client: Client, reader: Reader, writer: Writer, records: list[Record], to: str) -> None:
    """Copy records in one transaction. If the group refuses it, abort it and read again from the
    committed offsets."""
    told = {"records": len(records), "generation": reader.generation()}
    writer.begin()
    for each in records:
        writer.send(to, each.value, each.key)

    def commit() -> None:
        writer.send_offsets(ends(records), reader)
        if orders[-1:] == ["stall"]:
            writer.flush()
            tell("stalled", **told)
            threading.Event().wait()
        writer.commit()

    refused = client.error_of(commit)
    if refused == "none":
        tell("committed", **told)
        return
    writer.abort()
    for place in reader.assignment():
        found = reader.committed(place)
        reader.seek(place, 0 if found is None else found[0])
    tell("aborted", why=refused)


def work(client: Client, bootstrap: str, group: str, source: str, settings: str, *to: str) -> None:
    """Be a member until told to close."""
    more = {"isolation_level": "read_committed", "max_poll_records": 10} | json.loads(settings)
    reader, share = client.consumer(bootstrap, group, **more), []
    if to:
        limits = {"transaction_timeout_ms": int(to[2]), "linger_ms": 1}
        writer = client.transactional(bootstrap, to[1], **limits)
    reader.subscribe(source)
    while orders[-1:] != ["close"]:
        records = reader.poll(0.1)
        now = sorted(number for _, number in reader.assignment())
        if now != share:
            tell("assigned", partitions=now)
            share = now
        if records and to:
            copy(client, reader, writer, records, to[0])
        elif records:
            tell("got", records=[(each.partition, each.offset) for each in records])
            refused = client.error_of(lambda got=records: reader.commit(ends(got)))
            tell("committed" if refused == "none" else "refused", why=refused)
    reader.close()


def main() -> None:
    threading.Thread(
        target=lambda: orders.extend(line.strip() for line in sys.stdin), daemon=True
    ).start()
    with client_of(sys.argv[1], Path.cwd()) as client:
        tell("ready")
        work(client, *sys.argv[2:])
    tell("closed")


if __name__ == "__main__":
    main()

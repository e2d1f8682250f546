"""A registry that has lost its data directory: no broker removes what it holds."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
from support.core.broker_build import BrokerOnDisk, request
from support.core.damage import flip
from support.core.registry_cluster import RegistryCluster

from broker_sim.apis.registry_codes import NO_SESSION
from broker_sim.cli.main import main
from broker_sim.core.config import DataDirectoryError
from broker_sim.core.effects import Delete, Rename, WriteFile
from broker_sim.core.log import STRAY_SUFFIX
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import LEADER_EPOCH_AT

SESSION_MS = 3_000
LOG = "00000000000000000000.log"


@pytest.fixture
def cluster() -> RegistryCluster:
    """Three brokers with one record of the topic `orders` on each."""
    made = RegistryCluster()
    made.run(1_000)
    made.create_topic(0, "orders", 1)
    produce(made, 1)
    return made


def produce(cluster: RegistryCluster, count: int) -> None:
    for _ in range(count):
        cluster.write("paid")
    cluster.run(500)


def delete_records(cluster: RegistryCluster, offset: int) -> None:
    partitions = [{"partition_index": 0, "offset": offset}]
    message = request(
        ApiKey.DELETE_RECORDS,
        timeout_ms=1_000,
        topics=[{"name": "orders", "partitions": partitions}],
    )
    leader = cluster.held("orders").leader
    assert cluster.ask(leader, message, 2).topics[0].partitions[0].error_code == 0


def held(cluster: RegistryCluster, folder: str = "orders-0") -> list[bytes]:
    return [each.disk.read(f"{folder}/{LOG}", 0, 1000) for each in cluster.brokers.values()]


def strays(disk: SimDisk) -> list[str]:
    return [name for name in disk.list("") if name.endswith(STRAY_SUFFIX)]


def kill_all(cluster: RegistryCluster) -> None:
    for number in cluster.brokers:
        cluster.kill(number)


def check_each_refuses_to_start(
    cluster: RegistryCluster, numbers: Iterable[int], message: str, within_ms: int = 500
) -> None:
    for number in numbers:
        cluster.start(number)
        with pytest.raises(DataDirectoryError, match=message):
            cluster.run(within_ms)
        cluster.kill(number)


def lose_registry(cluster: RegistryCluster) -> None:
    cluster.put_registry(SimDisk())


def test_brokers_that_start_with_an_empty_registry_refuse_and_remove_nothing(cluster):
    records = held(cluster)
    assert all(b"paid" in each for each in records)
    kill_all(cluster)
    lose_registry(cluster)
    check_each_refuses_to_start(cluster, cluster.brokers, r"says nothing.*the registry")
    assert held(cluster) == records


def test_a_new_broker_on_an_empty_registry_makes_another_cluster_and_the_old_ones_refuse(cluster):
    records = held(cluster)
    kill_all(cluster)
    lose_registry(cluster)
    cluster.brokers[0].disk = SimDisk()
    cluster.start(0)
    cluster.run(500)
    assert cluster.brokers[0].membership.is_serving
    check_each_refuses_to_start(cluster, (1, 2), "two clusters")
    assert held(cluster)[1:] == records[1:]


def test_running_brokers_stop_when_the_registry_comes_back_with_less_than_they_have_read(
    empty_cluster,
):
    cluster = empty_cluster
    older = copy.deepcopy(cluster.registry_disk)
    cluster.create_topic(0, "orders", 1)
    produce(cluster, 1)
    records = held(cluster)
    cluster.put_registry(older)
    message = r"ends at offset \d+, .* earlier answer of the registry it ended at \d+"
    check_each_stops(cluster, message)
    assert held(cluster) == records


def test_running_brokers_stop_when_the_registry_comes_back_with_an_empty_directory(cluster):
    records = held(cluster)
    lose_registry(cluster)
    check_each_stops(cluster, "with a new one")
    assert held(cluster) == records


def check_each_stops(cluster: RegistryCluster, message: str) -> None:
    """Whichever comes to it first."""
    for number in cluster.brokers:
        for other in cluster.brokers:
            if other != number:
                cluster.pause(other)
        cluster.resume(number)
        with pytest.raises(DataDirectoryError, match=message):
            cluster.run(10_000)
        cluster.kill(number)


def test_a_directory_of_partitions_without_meta_properties_is_refused_and_left_alone(cluster):
    records = held(cluster)
    cluster.kill(2)
    cluster.brokers[2].disk.apply(Delete("meta.properties"))
    with pytest.raises(DataDirectoryError, match=r"orders-0.*no meta\.properties"):
        cluster.start(2)
    assert held(cluster) == records


def test_without_meta_properties_and_metadata_a_broker_that_is_alone_removes_nothing_either():
    broker = BrokerOnDisk()
    broker.create_topic("orders")
    broker.produce("orders", "paid")
    disk = broker.disk
    broker.stop()
    for name in ("meta.properties", "__cluster_metadata-0"):
        disk.apply(Delete(name))
    with pytest.raises(DataDirectoryError, match=r"orders-0.*no meta\.properties"):
        BrokerOnDisk(disk=disk)
    assert b"paid" in disk.read(f"orders-0/{LOG}", 0, 1000)


def test_logs_of_a_topic_that_was_deleted_while_a_broker_was_down_are_set_aside_as_in_kafka(
    cluster,
):
    (controller,) = cluster.controllers
    away = cluster.another()
    disk = cluster.brokers[away].disk
    for again in range(2):
        cluster.kill(away)
        cluster.delete_topic(controller, "orders")
        cluster.start(away)
        cluster.run(SESSION_MS + 2_000)
        assert strays(disk) == [f"orders-0.{number:032x}-stray" for number in range(again + 1)]
        assert b"paid" in disk.read(f"{strays(disk)[0]}/{LOG}", 0, 1000)
        # They are in nobody's way: the name is free for another topic.
        assert cluster.create_topic(controller, "orders", 1).error_code == 0
        cluster.run(500)
        cluster.check_healed()
        assert cluster.brokers[away].parts.logs.get("orders", 0).log_end_offset == 0


@pytest.mark.parametrize("snapshot_bytes", [2_000, 1_000_000], ids=["snapshot", "no-snapshot"])
def test_running_brokers_stop_when_the_registry_comes_back_with_another_clusters_directory(
    cluster, snapshot_bytes
):
    """Its log is longer, it may have a snapshot, and sessions with the numbers of those here."""
    records = held(cluster)
    other = RegistryCluster(metadata_log_max_record_bytes_between_snapshots=snapshot_bytes)
    for number in other.brokers:  # with other seeds, and so another cluster id
        other.kill(number)
        other.start(number)
    other.run(6_000)
    for number in range(40):
        other.create_topic(0, f"other{number}", 1)
    other.run(3_000)
    before = metadata(other)
    cluster.put_registry(other.registry_disk)
    check_each_stops(cluster, "directory of another cluster")
    assert metadata(cluster) == before
    assert held(cluster) == records
    for broker in cluster.brokers.values():
        assert list(broker.parts.image.topics) == ["orders"]
        assert not strays(broker.disk)


def metadata(cluster: RegistryCluster) -> tuple[int, set[str]]:
    """The end of the registry's log, and the persistent nodes."""
    assert cluster.registry is not None
    nodes = cluster.registry.nodes().items()
    end = cluster.registry.read(1 << 40).log_end_offset
    return end, {path for path, (_, _, owner) in nodes if owner == NO_SESSION}


def test_a_topic_of_the_name_of_a_log_that_was_set_aside_begins_at_its_own_start(cluster):
    """The offsets in the checkpoint files were of the log that was set aside."""
    (controller,) = cluster.controllers
    away = cluster.another()
    rest = [number for number in cluster.brokers if number != away]
    delete_records(cluster, 1)
    cluster.run(6_000)
    cluster.kill(away)
    cluster.run(SESSION_MS + 1_000)
    cluster.delete_topic(controller, "orders")
    assert cluster.create_topic(controller, "orders", assignment=rest).error_code == 0
    produce(cluster, 3)
    cluster.start(away)
    cluster.run(SESSION_MS + 2_000)
    assert len(strays(cluster.brokers[away].disk)) == 1
    assert cluster.reassign(controller, "orders", [away]).error_code == 0
    cluster.run(5_000)
    cluster.kill(away)
    cluster.start(away)
    cluster.run(SESSION_MS + 3_000)
    log = cluster.brokers[away].parts.logs.get("orders", 0)
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)


def test_a_clusters_directories_in_that_of_a_broker_that_is_alone_are_no_logs_of_a_topic():
    broker = BrokerOnDisk()
    for path in ("broker-0/meta.properties", f"broker-0/orders-0/{LOG}", "backup-2024/notes"):
        broker.disk.apply(WriteFile(path, b"paid"))
    broker.stop()
    broker.start()
    assert not strays(broker.disk)
    assert broker.disk.read(f"broker-0/orders-0/{LOG}", 0, 9) == b"paid"


def test_a_broker_that_has_heard_of_more_records_than_the_registry_has_stops(cluster):
    """The broker may not have read these records yet, and would ask for them for ever."""
    records = held(cluster)
    link = cluster.brokers[2].membership._link
    end = cluster.brokers[2].parts.metadata.next_offset
    link.heard_of_end(end + 5)
    message = rf"ends at offset {end}, .* it ended at {end + 5}:"
    with pytest.raises(DataDirectoryError, match=message):
        cluster.run(SESSION_MS)
    assert held(cluster) == records


def start_with_an_older_registry(cluster: RegistryCluster) -> SimDisk:
    """The registry comes back with a copy without `orders`; returns the disk that has it."""
    older = copy.deepcopy(cluster.registry_disk)
    cluster.create_topic(0, "orders", 1)
    produce(cluster, 1)
    cluster.run(6_000)  # replica.high.watermark.checkpoint.interval.ms is 5 s
    newest = cluster.registry_disk
    kill_all(cluster)
    cluster.put_registry(older)
    return newest


def start_all(cluster: RegistryCluster) -> None:
    for number in cluster.brokers:
        cluster.start(number)
    cluster.run(14_000)


@pytest.fixture
def empty_cluster() -> RegistryCluster:
    made = RegistryCluster()
    made.run(1_000)
    return made


def test_brokers_that_start_with_an_older_copy_of_the_registry_refuse_until_the_newest_is_back(
    empty_cluster,
):
    cluster = empty_cluster
    newest = start_with_an_older_registry(cluster)
    message = r"had read up to \d+: .* older copy"
    check_each_refuses_to_start(cluster, cluster.brokers, message, 5_000)
    assert all(b"paid" in each for each in held(cluster))
    cluster.put_registry(newest)
    start_all(cluster)
    check_all_have_the_record(cluster)


def test_what_an_older_copy_of_the_registry_does_not_name_is_kept_and_served_when_renamed_back(
    empty_cluster,
):
    """No broker notices it, as nothing says how far it had read.

    docs/broker/cluster.md has what to do.
    """
    cluster = empty_cluster
    newest = start_with_an_older_registry(cluster)
    set_all_aside(cluster)
    cluster.check_healed()
    rename_back(cluster, newest)
    check_all_have_the_record(cluster)


def set_all_aside(cluster: RegistryCluster) -> None:
    for broker in cluster.brokers.values():
        broker.disk.apply(Delete("replication-offset-checkpoint"))
    start_all(cluster)


def rename_back(cluster: RegistryCluster, newest: SimDisk) -> None:
    for number, broker in cluster.brokers.items():
        cluster.kill(number)
        (stray,) = strays(broker.disk)
        broker.disk.apply(Rename(stray, "orders-0"))
    cluster.put_registry(newest)
    start_all(cluster)


def test_what_was_deleted_stays_deleted_when_a_log_that_was_set_aside_is_renamed_back(
    empty_cluster,
):
    cluster = empty_cluster
    older = copy.deepcopy(cluster.registry_disk)
    cluster.create_topic(0, "orders", 1)
    produce(cluster, 3)
    delete_records(cluster, 2)
    cluster.run(6_000)
    newest = cluster.registry_disk
    kill_all(cluster)
    cluster.put_registry(older)
    set_all_aside(cluster)
    rename_back(cluster, newest)
    cluster.check_healed()
    logs = [each.parts.logs.get("orders", 0) for each in cluster.brokers.values()]
    assert [(log.log_start_offset, log.log_end_offset) for log in logs] == [(2, 3)] * 3


def check_all_have_the_record(cluster: RegistryCluster) -> None:
    cluster.check_healed()
    assert all(b"paid" in each for each in held(cluster))
    logs = [each.parts.logs.get("orders", 0) for each in cluster.brokers.values()]
    assert [log.log_end_offset for log in logs] == [1] * 3


def let_epochs_rise(cluster: RegistryCluster) -> SimDisk:
    """Elections between the copy that is returned and the last record; then all are killed."""
    cluster.create_topic(0, "orders", 1)
    produce(cluster, 1)
    older = copy.deepcopy(cluster.registry_disk)
    for number in 2 * (0, 1, 2):
        cluster.kill(number)
        cluster.run(SESSION_MS + 1_000)
        cluster.start(number)
        cluster.run(SESSION_MS + 2_000)
    produce(cluster, 1)
    kill_all(cluster)
    return older


def grow(cluster: RegistryCluster) -> None:
    """A broker with an empty directory makes the present copy longer than the newest one."""
    kept, cluster.brokers[0].disk = cluster.brokers[0].disk, SimDisk()
    cluster.start(0)
    cluster.run(SESSION_MS + 1_000)
    for number in range(40):
        cluster.create_topic(0, f"other{number}", 1, replication_factor=1)
    cluster.kill(0)
    cluster.brokers[0].disk = kept


@pytest.mark.parametrize("grows", [False, True], ids=["read-shortly-before", "grown"])
def test_brokers_refuse_an_older_copy_whose_leader_epochs_are_below_those_of_their_logs(
    empty_cluster, grows
):
    """Two leaders would give the same epoch to different records: replicas differ for good."""
    cluster = empty_cluster
    older, newest = let_epochs_rise(cluster), cluster.registry_disk
    cluster.put_registry(older)
    if grows:
        grow(cluster)
    else:  # what it says is five seconds old, or it is damaged
        for broker in cluster.brokers.values():
            broker.disk.apply(Delete("replication-offset-checkpoint"))
    records = held(cluster)
    message = r"orders-0 has records of leader epoch (\d+), and .* none above (\d+): .* older copy"
    for number in cluster.brokers:
        cluster.start(number)
        with pytest.raises(DataDirectoryError, match=message):
            cluster.run(SESSION_MS + 5_000)
        cluster.kill(number)
    assert held(cluster) == records
    assert not any(map(strays, [each.disk for each in cluster.brokers.values()]))
    cluster.put_registry(newest)
    start_all(cluster)
    cluster.check_healed()
    assert held(cluster) == records


def test_without_a_newer_copy_a_new_cluster_begins_and_dump_shows_what_the_logs_had(
    empty_cluster, tmp_path, capsys
):
    """The steps are the advice of the errors for this case."""
    cluster = empty_cluster
    cluster.put_registry(let_epochs_rise(cluster))
    cluster.start(1)
    with pytest.raises(DataDirectoryError, match=r"new cluster with empty .*dump --deep"):
        cluster.run(SESSION_MS + 5_000)
    cluster.kill(1)
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / LOG).write_bytes(held(cluster)[1])
    lose_registry(cluster)
    for broker in cluster.brokers.values():
        broker.disk = SimDisk()
    start_all(cluster)
    assert cluster.create_topic(0, "orders", 1).error_code == 0
    produce(cluster, 1)
    check_all_have_the_record(cluster)
    assert main(["dump", "--deep", str(tmp_path / "orders-0")]) == 0
    assert capsys.readouterr().out.count("paid") == 2


def test_a_leader_epoch_that_a_flipped_bit_has_raised_is_refused_until_the_log_is_moved_away(
    cluster,
):
    """No CRC covers it, and by itself it looks like that of a newer copy of the registry."""
    away = next(n for n in cluster.brokers if n != cluster.held("orders").leader)
    cluster.kill(away)
    disk = cluster.brokers[away].disk
    flip(disk, f"orders-0/{LOG}", 8 * (LEADER_EPOCH_AT + 2))
    cluster.start(away)
    message = r"If this is the newest, a bit .* move orders-0 away while another broker leads"
    with pytest.raises(DataDirectoryError, match=message):
        cluster.run(SESSION_MS + 2_000)
    cluster.kill(away)
    assert b"paid" in held(cluster)[away]
    disk.apply(Delete("orders-0"))
    cluster.start(away)
    cluster.run(SESSION_MS + 2_000)
    check_all_have_the_record(cluster)

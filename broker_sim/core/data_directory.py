"""Files of the data directory that name its owner, and the end of the process before this one.

A broker that cannot read them refuses to start, and changes nothing.
"""

from __future__ import annotations

from broker_sim.core.config import BrokerConfig, ConfigError, DataDirectoryError, parse_properties
from broker_sim.core.controller import ClusterImage
from broker_sim.core.effects import Delete, Effects, Storage, WriteFile
from broker_sim.core.replica.log_manager import has_log, partition_of_directory

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
META_PROPERTIES_FILE = "meta.properties"
META_PROPERTIES_VERSION = "1"
MACHINE_BOOT_FILE = "machine.boot"
"""The machine's boot at the last start; not a file of Kafka, which leaves this to replication."""
_SMALL_FILE_BYTES = 65536


class DataDirectory:
    """State of the data directory when the process starts."""

    def __init__(self, config: BrokerConfig, storage: Storage, machine_boot_id: str) -> None:
        """Raises DataDirectoryError when the directory is not this broker's."""
        self._node_id = config.integer("node.id")
        self._boot = machine_boot_id.encode()
        self._properties = _read_properties(self._node_id, storage)
        self.is_new = not self._properties
        """No cluster is known of it."""
        self.is_clean = storage.size_bytes(CLEAN_SHUTDOWN_FILE) is not None
        """The last process has stopped, and closed its logs."""
        last = storage.read(MACHINE_BOOT_FILE, 0, _SMALL_FILE_BYTES)
        self.is_other_boot = not self._boot or last != self._boot
        """The machine may have gone down since the last start, with what was not flushed."""

    def check(self, image: ClusterImage) -> None:
        """Raises DataDirectoryError when the directory is of another cluster than the image."""
        written = self._properties.get("cluster.id")
        if written is not None and written != image.cluster_id:
            raise DataDirectoryError(
                f"{META_PROPERTIES_FILE} says cluster.id={written}, the metadata log says "
                f"{image.cluster_id or 'nothing'}: files of two clusters are mixed, or the "
                "metadata log was removed (in a cluster, the data directory of the registry). "
                "Nothing was changed: put back what belongs together"
            )

    def claim(self, image: ClusterImage, effects: Effects) -> None:
        """Note the cluster, once its id is known. Raises as `check`."""
        self.check(image)
        if image.cluster_id and self.is_new:
            lines = (
                f"version={META_PROPERTIES_VERSION}",
                f"cluster.id={image.cluster_id}",
                f"node.id={self._node_id}",
            )
            data = "".join(f"{line}\n" for line in lines).encode()
            effects.storage.append(WriteFile(META_PROPERTIES_FILE, data))

    def begin(self, effects: Effects) -> None:
        """From here on the process may be killed, and its logs be left as they are."""
        if self.is_clean:
            effects.storage.append(Delete(CLEAN_SHUTDOWN_FILE))

    def note_boot(self, effects: Effects) -> None:
        """Note that the damage of a power loss before this boot is repaired."""
        effects.storage.append(WriteFile(MACHINE_BOOT_FILE, self._boot))


def _read_properties(node_id: int, storage: Storage) -> dict[str, str]:
    raw = storage.read(META_PROPERTIES_FILE, 0, _SMALL_FILE_BYTES)
    if storage.size_bytes(META_PROPERTIES_FILE) is None:
        named = filter(partition_of_directory, storage.list(""))
        logs = [directory for directory in named if has_log(directory, storage)]
        if logs:
            # They would be taken for those of partitions that the cluster does not have.
            raise DataDirectoryError(
                f"the directory has logs of partitions, such as {logs[0]}, and no "
                f"{META_PROPERTIES_FILE}, which says whose they are: put it back, or start the "
                "broker with an empty directory"
            )
        return {}
    try:
        properties = parse_properties(raw.decode("utf-8", "replace"))
    except ConfigError as error:
        raise DataDirectoryError(f"{META_PROPERTIES_FILE} is damaged: {error}") from error
    version = properties.get("version")
    if version != META_PROPERTIES_VERSION:
        raise DataDirectoryError(f"{META_PROPERTIES_FILE} has version {version}, not 1")
    if properties.get("node.id") != str(node_id):
        raise DataDirectoryError(
            f"the data directory belongs to node.id={properties.get('node.id')}, "
            f"this broker has node.id={node_id}"
        )
    return properties

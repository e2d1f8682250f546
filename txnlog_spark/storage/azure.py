"""Azure's storage, through its own SDK.

Pyarrow's file system for Azure empties an object when it begins to write it. So for a moment, or
after a crash, the replaced object would be lost. The SDK puts a small object as a whole, and blocks
that it writes are invisible until they are committed. Accounts with directories (Data Lake Storage
Gen2) have this interface too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob import BlobBlock, BlobClient, BlobPrefix, ContainerClient

from txnlog_spark.storage.file_store import Bytes
from txnlog_spark.storage.remote import Place, RemoteFiles

if TYPE_CHECKING:
    from azure.storage.blob import BlobProperties

BLOCK_BYTES = 8 * 1024 * 1024
BLOB_NOT_FOUND = "BlobNotFound"


class AzureFiles(RemoteFiles):
    """`Files` in one container."""

    def __init__(self, container: ContainerClient, place: Place) -> None:
        super().__init__(place)
        self._container = container

    def read_range(self, path: str, position: int, size: int) -> bytes:
        """Return a part of a blob."""
        with self._place.errors("it cannot be read"):
            blob = self._container.get_blob_client(self._place.inner(path))
            return blob.download_blob(offset=position, length=size).readall()

    def open_output(self, path: str) -> AzureOutput:
        """Begin a blob; nothing is sent yet."""
        return AzureOutput(self._container.get_blob_client(self._place.inner(path)), self._place)

    def delete_folder(self, path: str) -> None:
        """Delete all blobs below a prefix, and the directory in accounts with directories."""
        inner = self._place.inner(path)
        with self._place.errors("it cannot be deleted"):
            names = list(self._container.list_blob_names(name_starts_with=f"{inner}/"))
            for name in sorted(names, reverse=True):
                self._delete(name)
            self._delete(inner)

    def _content(self, inner: str) -> bytes | None:
        try:
            return self._container.get_blob_client(inner).download_blob().readall()
        except ResourceNotFoundError as error:
            _check_absent(error)
            return None

    def _names(self, inner: str, *, folders: bool = False) -> list[str]:
        found = list(self._container.walk_blobs(f"{inner}/", include=["metadata"]))
        names = {
            each.name.rstrip("/").rpartition("/")[2]
            for each in found
            if folders == (isinstance(each, BlobPrefix) or _is_directory(each))
        }
        return list(names)

    def _replace(self, inner: str, data: bytes) -> None:
        self._container.get_blob_client(inner).upload_blob(data, overwrite=True)

    def _delete(self, inner: str) -> None:
        try:
            self._container.delete_blob(inner)
        except ResourceNotFoundError as error:
            _check_absent(error)


def _check_absent(error: ResourceNotFoundError) -> None:
    """Raise the error again unless the blob is missing. A missing container is an error."""
    if getattr(error, "error_code", None) != BLOB_NOT_FOUND:
        raise error


def _is_directory(blob: BlobProperties) -> bool:
    return (blob.metadata or {}).get("hdi_isfolder") == "true"


class AzureOutput:
    """Blob whose blocks are committed when it is closed; Azure drops blocks that are never
    committed."""

    def __init__(self, blob: BlobClient, place: Place) -> None:
        self._blob = blob
        self._place = place
        self._pending = bytearray()
        self._blocks: list[BlobBlock] = []

    def write(self, data: Bytes) -> None:
        """Add bytes."""
        self._pending += data
        if len(self._pending) >= BLOCK_BYTES:
            self._stage()

    def close(self) -> None:
        """Commit all blocks."""
        if self._pending:
            self._stage()
        with self._place.errors("it cannot be written"):
            self._blob.commit_block_list(self._blocks)

    def abort(self) -> None:
        """Drop the bytes: without a commit, Azure drops the blocks that were sent."""
        self._pending.clear()

    def _stage(self) -> None:
        block_id = f"{len(self._blocks):08}"
        with self._place.errors("it cannot be written"):
            self._blob.stage_block(block_id, bytes(self._pending))
        self._blocks.append(BlobBlock(block_id))
        self._pending.clear()

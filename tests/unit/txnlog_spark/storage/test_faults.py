"""Stores that fail, lie, are slow or refuse, and file systems that die in the middle of a write."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import fsspec
import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem
from support.stores.object_store import (
    SECRET_KEY,
    Answer,
    ObjectStore,
    carried_out,
    failed,
    refused,
)

from txnlog_spark.commit.checkpoint_files import read_file, write_file
from txnlog_spark.errors import ProgressError
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.storage.arrow import RenamedFiles
from txnlog_spark.storage.connect import StorageSettings, open_files
from txnlog_spark.storage.file_store import Files
from txnlog_spark.storage.location import read_location
from txnlog_spark.storage.options import STORAGE_PREFIX
from txnlog_spark.storage.remote import Place, without_secrets

Fault = Callable[[dict[str, Any], Callable[..., Answer]], Answer | None]
PATH = "cp/txnlog/attempt.json"


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as made:
        made.put(PATH, b"old")
        yield made


def files_of(store: ObjectStore, **changes: str) -> Files:
    given = {name.removeprefix(STORAGE_PREFIX): value for name, value in store.options().items()}
    settings = StorageSettings({**StorageSettings().values, **given, **changes})
    return open_files("option", read_location("option", store.location("cp")), settings)


def on(method: str, act: Fault) -> Fault:
    """The fault of one kind of request."""
    return lambda env, do: act(env, do) if env["REQUEST_METHOD"] == method else None


def do_and_fail(environ: dict[str, Any], do: Callable[..., Answer]) -> Answer:
    carried_out(do)
    return failed(environ)


def test_a_small_file_is_one_put_and_a_durable_one_is_read_back(store: ObjectStore) -> None:
    files = files_of(store)
    store.requests.clear()
    files.write(store.location(PATH), b"new", durable=False)
    assert [method for method, _ in store.requests] == ["PUT"]
    files.write(store.location(PATH), b"newer", durable=True)
    assert [method for method, _ in store.requests[1:]] == ["PUT", "HEAD", "GET", "HEAD"]


def test_a_put_that_failed_is_an_error_with_what_to_look_at(store: ObjectStore) -> None:
    store.faults.append(on("PUT", lambda env, _: failed(env)))
    with pytest.raises(ProgressError, match=r"attempt\.json cannot be written") as caught:
        CommitHost(files_of(store)).run(write_file(store.location(PATH), b"new", durable=True))
    assert store.location(PATH) in str(caught.value)
    assert "Look at txnlog.fs.s3a.*" in str(caught.value)
    assert SECRET_KEY not in str(caught.value)
    assert store.get(PATH) == b"old"


@pytest.mark.parametrize("durable", [True, False])
def test_a_put_that_took_place_and_said_it_failed_is_found_out(
    store: ObjectStore, durable: bool
) -> None:
    store.faults.append(on("PUT", do_and_fail))
    files_of(store).write(store.location(PATH), b"new", durable=durable)
    assert store.get(PATH) == b"new"


def test_where_that_cannot_be_found_out_the_write_is_not_known(store: ObjectStore) -> None:
    store.faults += [on("PUT", do_and_fail), on("HEAD", lambda env, _: failed(env))]
    with pytest.raises(OSError, match="it cannot be read"):
        files_of(store).write(store.location(PATH), b"new", durable=True)
    store.faults.clear()
    assert store.get(PATH) == b"new"


def test_a_put_without_an_answer_may_take_place_later(store: ObjectStore) -> None:
    refused_count = 0

    def unanswered(env: dict[str, Any], _: Callable[..., Answer]) -> Answer:
        nonlocal refused_count
        refused_count += 1
        env["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return failed(env)

    files = files_of(store)
    store.faults.append(on("PUT", unanswered))
    with pytest.raises(OSError, match="it cannot be written"):
        files.write(store.location(PATH), b"new", durable=True)
    assert files.read(store.location(PATH)) == b"old"
    store.faults.clear()
    assert refused_count > 1  # the client tries again by itself
    store.put(PATH, b"new")  # what the store does in the end
    assert files.read(store.location(PATH)) == b"new"


def test_an_object_that_grows_while_it_is_read_is_not_cut_short(store: ObjectStore) -> None:
    def grown(env: dict[str, Any], _: Callable[..., Answer]) -> None:
        store.faults.clear()
        store.put(PATH, b"new and longer")

    store.faults.append(on("GET", grown))
    assert files_of(store).read(store.location(PATH)) == b"new and longer"


def test_bytes_of_another_driver_that_are_read_back_are_an_error(store: ObjectStore) -> None:
    def overtaken(env: dict[str, Any], do: Callable[..., Answer]) -> Answer:
        store.faults.clear()
        answer = list(do())
        store.put(PATH, b"of another")
        return answer

    store.faults.append(on("PUT", overtaken))
    with pytest.raises(OSError, match="another driver of this query writes it as well"):
        files_of(store).write(store.location(PATH), b"new", durable=True)


def test_who_is_not_let_in_is_told_and_finds_no_empty_checkpoint(store: ObjectStore) -> None:
    store.faults.append(lambda env, _: refused(env))
    disk = CommitHost(files_of(store))
    with pytest.raises(ProgressError, match=r"ACCESS_DENIED.*s3:ListBucket") as caught:
        disk.run(read_file(store.location(PATH)))
    assert SECRET_KEY not in str(caught.value)
    with pytest.raises(OSError, match=r"it cannot be listed.*ACCESS_DENIED"):
        disk.files.list_folder(store.location("cp/txnlog/ids"))


def test_a_store_that_is_not_there_is_an_error() -> None:
    with ObjectStore() as gone:
        files = files_of(gone)
    with pytest.raises(OSError, match=r"it cannot be read.*Look at txnlog"):
        files.read(gone.location(PATH))


def test_what_a_library_says_is_shown_without_secrets() -> None:
    said = Exception("GET 'https://a.example/b?sv=1&sig=hunter2' failed,\n key hunter3 or not. ")
    assert without_secrets(said, frozenset({"hunter3"})) == (
        "GET 'https://a.example/b?...' failed, key ... or not"
    )
    assert without_secrets(KeyError(), frozenset()) == "KeyError"


# ------------------------------------------------------------------ file systems that rename


class Died(Exception):
    """The process is gone."""


class DyingFileSystem(FSSpecHandler):
    """A file system in memory whose process dies in place of the n-th change, or right after it."""

    def __init__(self, dies_at: float = float("inf"), *, after: bool = False) -> None:
        super().__init__(fsspec.filesystem("memory"))
        self.left, self.after = dies_at, after

    def get_file_info_selector(self, selector: Any) -> Any:
        self._check_alive()
        return super().get_file_info_selector(selector)

    def open_input_file(self, path: str) -> Any:
        self._check_alive()
        return super().open_input_file(path)

    def _check_alive(self) -> None:
        if self.left <= 0:
            raise Died

    def _change(self, act: Callable[..., Any], *arguments: Any) -> Any:
        self._check_alive()
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Died
        done = act(*arguments)
        if self.left == 0:
            raise Died
        return done

    def create_dir(self, *arguments: Any) -> None:
        self._change(super().create_dir, *arguments)

    def open_output_stream(self, *arguments: Any) -> Any:
        return self._change(super().open_output_stream, *arguments)

    def delete_file(self, *arguments: Any) -> None:
        self._change(super().delete_file, *arguments)

    def move(self, source: str, target: str) -> None:
        if self.fs.exists(target):
            raise FileExistsError(target)  # as HDFS has it
        self._change(super().move, source, target)


def renamed_files(dies_at: float = float("inf"), *, after: bool = False) -> RenamedFiles:
    return files_in(DyingFileSystem(dies_at, after=after))


def files_in(handler: FSSpecHandler) -> RenamedFiles:
    return RenamedFiles(PyFileSystem(handler), Place("memory://x", "/x", "Look"))


@pytest.fixture(autouse=True)
def nothing_in_memory() -> Iterator[None]:
    fsspec.filesystem("memory").store.clear()
    yield
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("after", [False, True])
def test_a_file_that_is_replaced_is_never_absent_whenever_the_writer_dies(after: bool) -> None:
    path = "memory://x/txnlog/attempt.json"
    healthy, seen = renamed_files(), set()
    for dies_at in range(1, 20):
        fsspec.filesystem("memory").store.clear()
        healthy.write(path, b"old", durable=True)
        try:
            renamed_files(dies_at, after=after).write(path, b"new", durable=True)
        except OSError:
            found = healthy.read(path)
            assert found in (b"old", b"new")
            seen.add(found)
            healthy.write(path, b"newest", durable=True)
            assert healthy.read(path) == b"newest"
            assert healthy.list_folder("memory://x/txnlog") == ("attempt.json",)
        else:
            break
    assert seen == {b"old", b"new"}
    assert dies_at > 4


@pytest.mark.parametrize("after", [False, True])
def test_a_file_that_is_new_is_whole_or_absent_whenever_the_writer_dies(after: bool) -> None:
    path = "memory://x/txnlog/ids/a.json"
    for dies_at in range(1, 20):
        fsspec.filesystem("memory").store.clear()
        try:
            renamed_files(dies_at, after=after).write(path, b"new", durable=True)
        except OSError:
            assert renamed_files().read(path) in (None, b"new")
            assert renamed_files().list_folder("memory://x/txnlog/ids") in ((), ("a.json",))
        else:
            break
    assert dies_at > 2


def test_a_file_that_is_written_again_as_it_is_never_leaves_its_folder() -> None:
    path = "memory://x/txnlog/ids/a.json"
    renamed_files().write(path, b"same", durable=True)
    renamed_files(1).write(path, b"same", durable=True)
    assert renamed_files().list_folder("memory://x/txnlog/ids") == ("a.json",)


def put_beside(data: bytes, written: bytes, second: int) -> None:
    """Leave the file of a writer of `data` that died after writing `written`."""
    digest = hashlib.sha256(data).hexdigest()[:32]
    path = f"/x/txnlog/.attempt.json.{second:020}-abc-{digest}.new"
    fsspec.filesystem("memory").pipe_file(path, written)


def test_of_what_was_not_renamed_the_newest_whole_file_counts_until_there_is_another() -> None:
    path, files = "memory://x/txnlog/attempt.json", renamed_files()
    put_beside(b"torn", b"to", 9)
    assert files.read(path) is None
    put_beside(b"newer", b"newer", 5)
    put_beside(b"old", b"old", 3)
    assert files.read(path) == b"newer"
    assert files.list_folder("memory://x/txnlog") == ()
    files.write(path, b"newest", durable=True)
    assert files.read(path) == b"newest"
    files.delete(path)
    assert files.read(path) is None


def test_a_new_file_replaces_none_that_another_driver_was_first_to_write() -> None:
    path, first = "memory://x/ids/a.json", renamed_files()

    class Overtaken(DyingFileSystem):
        def move(self, source: str, target: str) -> None:
            first.write(path, self.bytes_of_the_first, durable=True)
            super().move(source, target)

    for of_the_first, fails in ((b"1", False), (b"2", True)):
        first.delete(path)
        handler = Overtaken()
        handler.bytes_of_the_first = of_the_first
        with pytest.raises(OSError, match=r"a\.json") if fails else nullcontext():
            files_in(handler).write(path, b"1", durable=True)
        assert first.read(path) == of_the_first


@pytest.mark.parametrize("removal_fails", [False, True])
def test_what_could_not_be_written_to_its_end_is_not_left_beside(removal_fails: bool) -> None:
    path, memory = "memory://x/full/attempt.json", fsspec.filesystem("memory")
    renamed_files().write(path, b"old", durable=True)

    class Full(DyingFileSystem):
        def open_output_stream(self, path: str, metadata: Any) -> Any:
            memory.pipe_file(path, b"n")
            raise OSError("no quota")

        def delete_file(self, path: str) -> None:
            if removal_fails:
                raise OSError("not now")
            super().delete_file(path)

    full = files_in(Full())
    for _ in range(3):
        with pytest.raises(OSError, match="it cannot be written: no quota"):
            full.write(path, b"new", durable=True)
    assert len(memory.ls("/x/full")) == (4 if removal_fails else 1)
    assert renamed_files().read(path) == b"old"


def test_a_write_whose_rename_failed_is_not_taken_for_done() -> None:
    healthy = renamed_files()
    blocked = DyingFileSystem()
    blocked.move = lambda *_: (_ for _ in ()).throw(OSError("no quota"))
    with pytest.raises(OSError, match="no quota"):
        files_in(blocked).write("memory://x/ids/a.json", b"1", durable=True)
    assert healthy.list_folder("memory://x/ids") == ()

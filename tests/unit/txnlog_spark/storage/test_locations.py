"""Locations of files: their spellings, and the errors of invalid locations."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.core.pipeline.transport import HttpTransport, RequestsTransport

from txnlog_spark.errors import OptionError
from txnlog_spark.storage.connect import StorageSettings, open_files
from txnlog_spark.storage.default_fs import check_reading
from txnlog_spark.storage.local import LocalFiles
from txnlog_spark.storage.location import read_location
from txnlog_spark.storage.remote import StoreFailed


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("s3a://bucket/a/b", "s3a://bucket/a/b"),
        ("S3A://bucket//a///b/", "s3a://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("gs://bucket/a b%20c", "gs://bucket/a b%20c"),
        ("abfss://box@name.dfs.core.windows.net/a", "abfss://box@name.dfs.core.windows.net/a"),
        ("hdfs://host:8020/a", "hdfs://host:8020/a"),
        ("hdfs:/a", "hdfs:///a"),
        ("hdfs:///a", "hdfs:///a"),
        ("memory://x/a", "memory://x/a"),
    ],
)
def test_a_remote_location_is_read_as_hadoop_reads_it(text: str, read: str) -> None:
    location = read_location("checkpointLocation", text)
    assert (location.text, location.local, location.is_bare) == (read, None, False)
    assert str(location / "txnlog" / "ids") == f"{read}/txnlog/ids"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3a:///a", r"s3a://, then the bucket, then a path"),
        ("s3a:bucket/a", r"s3a://, then the bucket"),
        ("gs://", r"gs://, then the bucket"),
        ("abfss://box/a", r"abfss://, then CONTAINER@ACCOUNT\.dfs\.core\.windows\.net"),
        ("hdfs:a", r"hdfs://, then"),
        ("s3a://bucket/a/../b", r"without \. and \.\. in it"),
        ("file://host/a", r"file: and the absolute path"),
        ("file:a", r"file: and the absolute path"),
        ("dbfs:/a", r"the path where it is mounted, such as /Volumes/"),
    ],
)
def test_what_is_no_location_is_refused(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        read_location("checkpointLocation", text)
    assert caught.value.value == text


def test_a_password_in_a_location_is_refused_and_not_shown() -> None:
    with pytest.raises(OptionError, match="a location without a password") as caught:
        read_location("checkpointLocation", "s3a://key:hunter2@bucket/a")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["/a/b", "a/b", "file:/a/b"])
def test_a_path_is_on_this_machine(text: str) -> None:
    location = read_location("checkpointLocation", text)
    assert location.local == Path(location.text)
    assert location.local.is_absolute()
    assert location.is_bare == (not text.startswith("file:"))
    assert isinstance(open_files("", location, StorageSettings()), LocalFiles)


@pytest.mark.parametrize(
    "spellings",
    [
        ("s3a://bucket/a/b", "s3://bucket/a/b", "s3n://bucket//a///b/", "S3A://bucket/a/b"),
        (
            "abfss://box@name.dfs.core.windows.net/a",
            "abfs://box@NAME.dfs.core.windows.net//a/",
        ),
        ("hdfs://host:8020/a", "HDFS://HOST:8020/a/"),
        ("/a/b", "/a//b/", "file:/a/b", "file:///a/b/", "file://localhost/a/b", "/a/../a/b"),
    ],
)
def test_a_place_has_one_name_in_all_spellings(spellings: tuple[str, ...]) -> None:
    normal = {read_location("checkpointLocation", text).normal for text in spellings}
    assert len(normal) == 1
    assert not normal.pop().endswith("/")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("s3a://bucket/a", "s3a://bucket/A"),
        ("s3a://bucket/a", "gs://bucket/a"),
        ("s3a://bucket/a%20b", "s3a://bucket/a b"),
        ("file:/a%20b", "file:/a b"),
        ("hdfs:///a", "file:/a"),
    ],
)
def test_two_places_have_two_names(text: str, other: str) -> None:
    """Nothing is decoded: `%20` is literal in Hadoop's paths."""
    first, second = (read_location("checkpointLocation", each) for each in (text, other))
    assert first.normal != second.normal


def test_a_path_is_named_by_where_it_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "link").symlink_to("volume")
    monkeypatch.chdir(tmp_path)
    named = [f"{tmp_path}/link/cp", "link/cp", "volume/cp", f"file:{tmp_path}/volume/cp"]
    expected = str((tmp_path / "volume" / "cp").resolve())
    assert {read_location("checkpointLocation", text).normal for text in named} == {expected}


def test_a_store_that_nothing_here_can_open_says_what_to_install() -> None:
    location = read_location("checkpointLocation", "nosuch://x/a")
    with pytest.raises(OptionError, match=r"checkpointLocation='nosuch://x/a': it cannot be ") as e:
        open_files("checkpointLocation", location, StorageSettings())
    assert "pip install fsspec and its package for nosuch" in str(e.value)


def test_hdfs_without_hadoops_library_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.delenv(name, raising=False)
    location = read_location("checkpointLocation", "hdfs://127.0.0.1:1/a")
    with pytest.raises(OptionError, match=r"hdfs.*set HADOOP_HOME, JAVA_HOME and CLASSPATH"):
        open_files("checkpointLocation", location, StorageSettings())


CORE_SITE = """<?xml version="1.0"?><configuration>
<property><name>io.file.buffer.size</name><value>1</value></property>
<property><name>fs.defaultFS</name><value>hdfs://name:8020/</value></property>
</configuration>"""


@pytest.mark.parametrize(
    ("core_site", "other"),
    [
        (CORE_SITE, "hdfs://name:8020/cp"),
        ("<configuration/>", "SCHEME://NAME/cp"),
        ("<torn", "SCHEME://NAME/cp"),
        (None, "SCHEME://NAME/cp"),
    ],
)
def test_a_path_that_spark_reads_otherwise_is_told_both_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, core_site: str | None, other: str
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    if core_site is not None:
        (tmp_path / "core-site.xml").write_text(core_site)
    with pytest.raises(OptionError, match=f"write file:/cp or {other}, whichever is meant"):
        check_reading("checkpointLocation", read_location("checkpointLocation", "/cp"))


def test_a_path_with_sparks_files_is_the_one_that_spark_means(tmp_path: Path) -> None:
    bare = read_location("checkpointLocation", str(tmp_path))
    with pytest.raises(OptionError):
        check_reading("checkpointLocation", bare)
    check_reading("", read_location("checkpointLocation", f"file:{tmp_path}"))
    (tmp_path / "metadata").write_text("{}")
    check_reading("", bare)


KEY = "aHVudGVyMg=="


@pytest.mark.parametrize(
    ("host", "endpoint", "url"),
    [
        ("name.dfs.core.windows.net", None, "https://name.blob.core.windows.net/box"),
        ("name.dfs.core.chinacloudapi.cn", None, "https://name.blob.core.chinacloudapi.cn/box"),
        ("name.dfs.core.windows.net", "127.0.0.1:9", "http://127.0.0.1:9/name/box"),
    ],
)
def test_an_azure_account_is_reached_by_its_blob_service(
    host: str, endpoint: str | None, url: str
) -> None:
    given = {"azure.account.key": KEY, "azure.abfs.endpoint": endpoint}
    settings = StorageSettings({**StorageSettings().values, **given})
    files = open_files("", read_location("", f"abfss://box@{host}/a"), settings)
    assert files._container.url == url


@pytest.mark.parametrize(
    ("retries", "attempts_expected", "at_least_s", "at_most_s"),
    [(None, 4, 15, 20), ("0", 1, 2, 2), ("9", 10, 38, 56)],
)
def test_an_azure_host_that_cannot_be_reached_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
    retries: str | None,
    attempts_expected: int,
    at_least_s: int,
    at_most_s: int,
) -> None:
    """The time is the sum of the SDK's attempts and pauses; the test itself does not wait."""
    connecting, naps = [], []

    def send(transport: RequestsTransport, *_: object, **__: object) -> None:
        connecting.append(transport.connection_config.timeout)
        raise ServiceRequestError("nobody is there")

    monkeypatch.setattr(RequestsTransport, "send", send)
    monkeypatch.setattr(HttpTransport, "sleep", lambda _, seconds: naps.append(seconds))
    given = {"azure.account.key": KEY}
    given |= {} if retries is None else {"azure.io.retry.max.retries": retries}
    settings = StorageSettings({**StorageSettings().values, **given})
    files = open_files("", read_location("", "abfss://box@unreachable.dfs.here/a"), settings)
    with pytest.raises(StoreFailed, match="nobody is there"):
        files.read("abfss://box@unreachable.dfs.here/a/b")
    assert len(connecting) == attempts_expected
    assert at_least_s <= sum(connecting) + sum(naps) <= at_most_s
    with pytest.raises(StoreFailed, match="nobody is there"):
        files.write("abfss://box@unreachable.dfs.here/a/b", b"new", durable=True)
    assert len(connecting) == 3 * attempts_expected, "written, and asked what became of it"
    assert sum(connecting) + sum(naps) <= 3 * at_most_s


def test_one_store_with_the_same_settings_is_opened_once() -> None:
    first, second = (read_location("", f"s3a://bucket/{name}") for name in "ab")
    given = {"s3a.endpoint": "http://127.0.0.1:9", "s3a.access.key": "a", "s3a.secret.key": "b"}
    settings = [StorageSettings({**StorageSettings().values, **given, **more}) for more in
                ({}, {}, {"s3a.secret.key": "c"})]  # fmt: skip
    opened = [open_files("", first, settings[0]), open_files("", second, settings[1])]
    assert opened[0] is opened[1]
    assert open_files("", first, settings[2]) is not opened[0]


def test_an_access_key_without_its_secret_names_the_options() -> None:
    given = {"s3a.endpoint": "http://127.0.0.1:9", "s3a.access.key": "hunter"}
    settings = StorageSettings({**StorageSettings().values, **given})
    with pytest.raises(OptionError, match=r"txnlog\.fs\.\* options") as caught:
        open_files("checkpointLocation", read_location("", "s3a://bucket/a"), settings)
    assert "hunter" not in str(caught.value)

"""A query whose checkpoint is in an object store: Spark reaches it by Hadoop's S3A."""

from __future__ import annotations

from pathlib import Path

from support.harness.maven import fetched_jars
from support.spark.spark_copy import CopyQuery
from support.spark.spark_home import INSTALLED
from support.stores.object_store import ObjectStore

SDK_VERSION = "2.35.4"
"""Version of the AWS SDK that hadoop-aws 3.5.0 is built with."""
ACCELERATOR_VERSION = "1.3.1"
SPARK_HAS = "io.netty,org.slf4j,commons-codec,commons-logging,org.apache.httpcomponents"


def hadoop_version() -> str:
    """Return the version of PySpark's Hadoop client; S3A must have the same version."""
    (jar,) = (INSTALLED / "jars").glob("hadoop-client-api-*.jar")
    return jar.stem.rpartition("-")[2]


def s3a_jars() -> list[Path]:
    """The jars to give to Spark, fetched once (18 MB). Unavailable with Maven's reason.

    S3A comes with the parts of AWS's SDK that it uses: the bundle it asks for has 600 MB.
    """
    hadoop, sdk = hadoop_version(), "software.amazon.awssdk"
    accelerator = "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3"
    artifacts = {
        f"org.apache.hadoop:hadoop-aws:{hadoop}": "*:*",
        f"{sdk}:s3-transfer-manager:{SDK_VERSION}": "",
        f"{sdk}:apache-client:{SDK_VERSION}": "",
        f"{sdk}:sts:{SDK_VERSION}": "",
        f"{accelerator}:{ACCELERATOR_VERSION}": "*:*",
    }
    left_out = f"-DexcludeGroupIds={SPARK_HAS}"
    folder = fetched_jars("Hadoop's S3A", f"s3a/{hadoop}", artifacts, left_out)
    return sorted(folder.glob("*.jar"))


class ObjectStoreQuery(CopyQuery):
    """`CopyQuery` with its checkpoint in a bucket."""

    def __init__(
        self, store: ObjectStore, jars: list[Path], folder: Path, bootstrap: str, name: str
    ) -> None:
        super().__init__(folder, bootstrap, name)
        self.store = store
        self.prefix = f"checkpoints/{name}"
        self.write_options = store.options()
        self.spark_config = {"spark.jars": ",".join(map(str, jars))}
        self.spark_config |= store.options("spark.hadoop.fs.")

    @property
    def checkpoint_location(self) -> str:
        return self.store.location(self.prefix)

    def names_in(self, log: str) -> list[str]:
        return [key.rpartition("/")[2] for key in self.store.names(f"{self.prefix}/{log}/")]

    def text_of(self, path: str) -> str:
        return self.store.get(f"{self.prefix}/{path}").decode()

"""`transformWithState`: the running total of each customer, in state of the query's own."""

from collections.abc import Iterator

from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from txnlog_testing import exactly_once

PAYMENTS = [{"customer": f"c{n % 4}", "cents": n} for n in range(60)]
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Totals(StatefulProcessor):
    """Keeps a sum for each customer, and writes it for each batch that has payments of theirs."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self.total = handle.getValueState("total", "cents BIGINT")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        """Add what came in."""
        before = self.total.get()[0] if self.total.exists() else 0
        now = before + sum(row.cents for row in rows)
        self.total.update((now,))
        yield Row(key=key[0], value=str(now))

    def close(self) -> None:
        """Nothing is open."""


def job(spark, kafka, checkpoint):
    """Start the query."""
    reader = spark.readStream.format("txnlog").options(**kafka.options, subscribe="payments")
    records = reader.option("startingOffsets", "earliest").load()
    payment = sf.from_json(sf.col("value").cast("string"), "customer STRING, cents BIGINT")
    payments = records.select(payment.alias("p")).select("p.*")
    totals = payments.groupBy("customer").transformWithState(
        Totals(), "key STRING, value STRING", outputMode="Append", timeMode="None"
    )
    writer = totals.writeStream.format("txnlog").options(**kafka.options, topic="totals")
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def test_totals_are_exactly_once():
    exactly_once(
        job,
        input={"payments": PAYMENTS},
        output="totals",
        spark_config={"spark.sql.streaming.stateStore.providerClass": ROCKSDB},
    )

"""The tables of options in the README and in docs/kafka-configs.md, made from those in the code.

Run it to write both.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CONFIGS = ROOT / "docs" / "kafka-configs.md"
GUIDE = (
    "assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "endingOffsets", "failOnDataLoss", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs", "partition.metadata.cache.ttl.ms", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id", "includeHeaders", "startingOffsetsByTimestampStrategy", "topic",
    "kafka.partitioner.class", "kafka.auto.offset.reset", "kafka.key.deserializer",
    "kafka.value.deserializer", "kafka.key.serializer", "kafka.value.serializer",
    "kafka.enable.auto.commit", "kafka.interceptor.classes",
)  # fmt: skip
"""The options of Spark's guide to Structured Streaming and Kafka, in its order; and
maxRecordsPerPartition, which the connector has and the guide had not yet."""


def options_table() -> str:
    """Markdown: one row an option, in the order of the table in the code."""
    from txnlog_spark.options.declared import OPTIONS, Use

    words = {
        Use.ALL: "all",
        Use.READ: "read",
        Use.WRITE: "write",
        Use.READ_STREAM: "readStream",
        Use.WRITE_STREAM: "writeStream",
        Use.READ_BATCH: "batch read",
        Use.WRITE_BATCH: "batch write",
    }
    lines = ["| option | for | default | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        default = "" if option.default is None else f"`{str(option.default).lower()}`"
        if isinstance(option.default, str):
            default = f"`{option.default}`"
        lines.append(f"| {names} | {words[option.use]} | {default} | {option.doc} |")
    return "\n".join(lines) + "\n"


def outcomes(name: str) -> dict[str, str]:
    """What becomes of an option: "obeyed", "no effect: why" or "refused: why", by use."""
    from txnlog_spark.options.declared import OPTIONS, Use
    from txnlog_spark.options.kafka_configs import KAFKA_CONFIGS, Support
    from txnlog_spark.options.parse import NO_EFFECT

    declared = next((o.use for o in OPTIONS if name in (o.name, *o.aliases)), Use(0))
    nothing_in, why = NO_EFFECT.get(name, (Use(0), ""))
    config = KAFKA_CONFIGS.get(name)
    found = {}
    for use, word in WORDS.items():
        if Use[use] & declared:
            found[word] = "obeyed"
        elif Use[use] & nothing_in:
            found[word] = f"no effect: {why}"
        elif config is None:
            found[word] = "refused"
        elif config.standing is Support.REFUSED:
            found[word] = f"refused: {config.why}"
        else:
            but = f" (another value is refused: {config.allowed})" if config.allowed else ""
            found[word] = f"no effect: {config.why}{but}"
    return found


WORDS = {
    "READ_STREAM": "`readStream`",
    "READ_BATCH": "`read`",
    "WRITE_STREAM": "`writeStream`",
    "WRITE_BATCH": "`write`",
}


def guide_table() -> str:
    """Markdown: what becomes of each option of Spark's guide, uses with one outcome together."""
    lines = ["| option | what becomes of it |", "|---|---|"]
    for name in GUIDE:
        uses: dict[str, list[str]] = {}
        for word, outcome in outcomes(name).items():
            uses.setdefault(outcome, []).append(word)
        told = [
            outcome if len(words) == len(WORDS) else f"{', '.join(words)}: {outcome}"
            for outcome, words in uses.items()
            if outcome != "refused"
        ]
        lines.append(f"| `{name}` | {'; '.join(told)} |")
    return "\n".join(lines) + "\n"


def configs_text() -> str:
    """The whole of docs/kafka-configs.md."""
    from txnlog_spark.options.kafka_configs import KAFKA_CONFIGS, Support

    rows: dict[tuple[str, str], list[str]] = {}
    for name, config in KAFKA_CONFIGS.items():
        if config.standing is Support.SUPPORTED:
            continue
        but = f" (another value is refused: {config.allowed})" if config.allowed else ""
        rows.setdefault((config.standing.value, config.why + but), []).append(f"`{name}`")
    lines = [f"| {', '.join(names)} | {what} | {why} |" for (what, why), names in rows.items()]
    return (
        "# Configurations of Kafka's clients that the connector does not obey\n\n"
        "For: owners of a job that sets such a configuration.\n\n"
        "Those it obeys are in the README. One without effect is taken, with one line in the log\n"
        "of a process; one that is refused is an error, and so is any other name. Written by\n"
        "`tests/tidy/option_tables.py` from `txnlog_spark/options/kafka_configs.py`.\n\n"
        "| configuration | what becomes of it | why |\n|---|---|---|\n" + "\n".join(lines) + "\n"
    )


def with_options(text: str) -> str:
    """The README's text with the current tables in their places."""
    for name, table in (("options", options_table()), ("guide", guide_table())):
        section = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text, count = section.subn(lambda m, t=table: m.group(1) + t + m.group(2), text)
        if count != 1:
            raise ValueError(f"the README has no place for the table {name}")
    return text


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    README.write_text(with_options(README.read_text(encoding="utf-8")), encoding="utf-8")
    CONFIGS.write_text(configs_text(), encoding="utf-8")

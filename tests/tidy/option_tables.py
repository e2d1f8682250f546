"""The options in docs/options.md, migration.md and kafka-configs.md, made from those in the code.

Run it to write them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txnlog_spark.options.declared import Option
    from txnlog_spark.options.kafka_configs import KafkaConfig

ROOT = Path(__file__).resolve().parents[2]
OPTIONS_PAGE = ROOT / "docs" / "options.md"
MIGRATION_PAGE = ROOT / "docs" / "migration.md"
CONFIGS_PAGE = ROOT / "docs" / "kafka-configs.md"
CELL_CHARACTERS_MAX = 120
SHORT_CHARACTERS_MAX = 100
STORAGE_PREFIX = "txnlog.fs."
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


def group_of(option: Option) -> str:
    """The table that has an option: connection, security, storage, read or write."""
    from txnlog_spark.options.declared import Use

    if option.sets == "connection.security":
        return "security"
    if option.name.startswith(("staging", "checkpointLocation", STORAGE_PREFIX)):
        return "storage"
    if option.use is Use.ALL:
        return "connection"
    return "read" if option.use & Use.READ else "write"


def options_table(group: str) -> str:
    """Markdown: one row an option, in the order of the code; below it what a cell cannot hold."""
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
    rows, below = [], []
    for option in OPTIONS:
        if group_of(option) != group:
            continue
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        default = "" if option.default is None else f"`{str(option.default).lower()}`"
        if isinstance(option.default, str):
            default = f"`{option.default}`"
        meaning = option.doc
        if len(meaning) > CELL_CHARACTERS_MAX:
            below.append(f"- `{option.name}`: {meaning}")
            first = re.split(r"[.:;] ", meaning)[0]
            if len(first) > SHORT_CHARACTERS_MAX:
                first = first.split(", ")[0]
            meaning = f"{first}: see below."
        rows.append(f"| {names} | {words[option.use]} | {default} | {meaning} |")
    head = ["| option | for | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, *(["", *below] if below else [])]) + "\n"


def outcomes(name: str) -> dict[str, str]:
    """Return the effect of an option, by use: "obeyed", "no effect: why" or "refused: why"."""
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
            but = refusal_of(config)
            found[word] = f"no effect: {config.why}{but}"
    return found


WORDS = {
    "READ_STREAM": "`readStream`",
    "READ_BATCH": "`read`",
    "WRITE_STREAM": "`writeStream`",
    "WRITE_BATCH": "`write`",
}


def refusal_of(config: KafkaConfig) -> str:
    """Return the sentence about the values that a configuration without effect may not have."""
    if not config.allowed:
        return ""
    value, _, why = config.allowed.partition(": ")
    verb = "" if value.startswith("leave") else "set "
    reason = f", because {why}" if why and why != config.why else ""
    return f". Another value is refused; {verb}{value}{reason}"


def guide_list() -> str:
    """Markdown: what becomes of each option of Spark's guide, uses with one outcome together."""
    lines = []
    for name in GUIDE:
        uses: dict[str, list[str]] = {}
        for word, outcome in outcomes(name).items():
            uses.setdefault(outcome, []).append(word)
        told = [
            outcome if len(words) == len(WORDS) else f"{', '.join(words)}: {outcome}"
            for outcome, words in uses.items()
            if outcome != "refused"
        ]
        lines.append(f"- `{name}`: {'; '.join(told)}")
    return "\n".join(lines) + "\n"


def configs_list(standing: str) -> str:
    """Markdown: the configurations that have no effect, or are refused, by the reason."""
    from txnlog_spark.options.kafka_configs import KAFKA_CONFIGS

    names: dict[str, list[str]] = {}
    for name, config in KAFKA_CONFIGS.items():
        if config.standing.value == standing:
            but = refusal_of(config)
            names.setdefault(config.why + but, []).append(f"`{name}`")
    return "\n".join(f"- {', '.join(each)}: {why}" for why, each in names.items()) + "\n"


def sections() -> dict[Path, dict[str, str]]:
    """Return the generated texts, by document and by the name of their place."""
    groups = ("connection", "read", "write", "storage", "security")
    return {
        OPTIONS_PAGE: {group: options_table(group) for group in groups},
        MIGRATION_PAGE: {"guide": guide_list()},
        CONFIGS_PAGE: {"no effect": configs_list("no effect"), "refused": configs_list("refused")},
    }


def with_sections(text: str, written: dict[str, str]) -> str:
    """A document's text with the current tables and lists in their places."""
    for name, section in written.items():
        place = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text, count = place.subn(lambda m, s=section: f"{m.group(1)}\n{s}\n{m.group(2)}", text)
        if count != 1:
            raise ValueError(f"the document has no place for {name}")
    return text


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for page, written in sections().items():
        page.write_text(with_sections(page.read_text(encoding="utf-8"), written), encoding="utf-8")

"""The table of options: each says which setting it sets, and a default is written once."""

from __future__ import annotations

import dataclasses
from collections import Counter

from txnlog_kafka.operations.session import SessionConfig
from txnlog_spark.client_cache import ConnectionSettings
from txnlog_spark.commit.plan import CommitOptions
from txnlog_spark.options.declared import OPTIONS
from txnlog_spark.options.parse import settings_of
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.source.settings import SourceSettings
from txnlog_spark.staging.address import StagingSettings

GROUPS = {
    "connection": ConnectionSettings,
    "session": SessionConfig,
    "read": SourceSettings,
    "write": SinkSettings,
    "staging": StagingSettings,
}
COPIED = {"overwrite_group": "overwrite_group_offsets"}
"""Fields of `CommitOptions` that have another name in `SinkSettings`."""
MADE_OF_SEVERAL = {
    "connection.security",
    "read.selection",
    "read.starting",
    "read.ending",
    "write.storage",
    "read.formats",
    "write.formats",
}
NOT_BY_OPTIONS = {
    "connection.session",
    "connection.is_made",
    "session.bootstrap_timeout_ms",
    "session.topic_wait_ms",
    "read.connection",
    "write.connection",
    "write.staging",
}
"""Parts that have options of their own, and limits that follow from others."""


def test_each_setting_has_one_option_and_each_option_says_what_it_sets() -> None:
    by = Counter(target for option in OPTIONS for target in option.sets.split())
    fields = {
        f"{group}.{field.name}"
        for group, holder in GROUPS.items()
        for field in dataclasses.fields(holder)
    }
    assert set(by) == fields - NOT_BY_OPTIONS
    assert {target for target, count in by.items() if count > 1} == MADE_OF_SEVERAL
    checked_only = {option.name for option in OPTIONS if not option.sets}
    assert checked_only == {"kafka.acks", "kafka.enable.idempotence"}


def test_a_default_is_written_once_or_is_that_of_the_client_itself() -> None:
    written = {
        f"{group}.{field.name}": field.default
        for group, holder in GROUPS.items()
        for field in dataclasses.fields(holder)
        if field.default is not dataclasses.MISSING
    }
    for option in OPTIONS:
        for target in set(option.sets.split()) - {"session.operation_timeout_ms"}:
            assert written.get(target, option.default) == option.default, target
    assert {target.partition(".")[0] for target in written} == {"session"}


def test_the_commit_has_the_defaults_of_the_write_options_that_it_copies() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(CommitOptions)}
    declared = {
        target.removeprefix("write."): option.default
        for option in OPTIONS
        for target in option.sets.split()
        if target.startswith("write.")
    }
    copied = {name: COPIED.get(name, name) for name in defaults}
    copied = {name: setting for name, setting in copied.items() if setting in declared}
    assert {"group_id", "topic", "overwrite_group", "transaction_timeout_ms"} <= copied.keys()
    for name, setting in copied.items():
        # A sink without a name has the name "".
        assert (defaults[name] or None) == (declared[setting] or None), name


def test_a_value_comes_to_the_setting_that_its_option_names() -> None:
    values = {"kafka.group.id": "g", "kafka.metadata.max.age.ms": 7}
    assert settings_of(values, "write")["group_id"] == "g"
    read = settings_of(values, "read")
    assert (read["group_id"], read["metadata_max_age_ms"], read["min_partitions"]) == ("g", 7, None)
    assert settings_of(values, "session")["read_replica_ms"] == 7
    assert "selection" not in read

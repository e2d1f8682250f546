"""Options of a read or a write, parsed to typed values.

Nothing is ignored silently, because a misspelled option could turn an exactly-once job into an
at-least-once job. A config of Kafka that only tunes Kafka's own clients is accepted and logged
(`kafka_configs.py`). Any other name that is not declared (`declared.py`) is an error. Spark passes
options with lower-cased names, so names are compared without regard to case.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from txnlog_kafka.host.security_options import without_effect
from txnlog_spark.errors import OptionError
from txnlog_spark.log_once import warn_once
from txnlog_spark.options.declared import OPTIONS, Option, Use
from txnlog_spark.options.kafka_configs import KAFKA_CONFIGS, PREFIX, Support, config_of
from txnlog_spark.storage.options import unused_storage_options

HINT_RATIO_MIN = 0.75
"""Least similarity of two names for one to be a hint for the other; 1 means equal."""

logger = logging.getLogger(__name__)

_SET_BY = Counter(target for option in OPTIONS for target in option.sets.split())
_BY_NAME: dict[str, Option] = {
    name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)
}
_SPELLINGS: dict[str, str] = {
    name.lower(): name for option in OPTIONS for name in (option.name, *option.aliases)
}

NO_EFFECT: dict[str, tuple[Use, str]] = {
    "groupIdPrefix": (Use.READ, "tasks read without joining a consumer group"),
    **dict.fromkeys(
        ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        (Use.READ_BATCH, "a batch read has no triggers"),
    ),
    "partition.metadata.cache.ttl.ms": (Use.READ_BATCH, "a batch read asks for partitions once"),
    "includeHeaders": (Use.WRITE, "a column headers is written whenever there is one"),
}
"""Options that a job may bring along from Spark's connector: the uses in which they have no effect,
and the reason."""

_NO_EFFECT = {name.lower(): name for name in NO_EFFECT}


def parse_options(options: Mapping[str, str], use: Use) -> dict[str, Any]:
    """Return the value of every option that is valid for `use`, by its declared name, with
    defaults.

    Raises OptionError for the first option that is unknown, not valid for `use`, or malformed.
    """
    values = {option.name: option.default for option in OPTIONS if use & option.use}
    given: dict[str, str] = {}
    for name, text in options.items():
        option = _find_option(name, text, use)
        if option is None:
            continue
        spelling = _SPELLINGS[name.lower()]
        if option.name in given:
            raise OptionError(spelling, text, f"remove it: {given[option.name]} is the same option")
        given[option.name] = spelling
        try:
            values[option.name] = option.read(text)
        except ValueError as error:
            raise OptionError(spelling, text, str(error)) from None
    for name, why in without_effect(given, values["kafka.security.protocol"]).items():
        _tell_no_effect(name, why)
    locations = [values.get(name) for name in ("checkpointLocation", "stagingLocation")]
    for name, why in unused_storage_options(given, locations).items():
        _tell_no_effect(name, why)
    return values


def settings_of(values: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the settings of a group, by field: the value or the default of the option that sets
    each.

    A field that several options set is left out. The groups are `connection`, `session`, `read`,
    `write` and `staging`, named after the classes that have these fields.
    """
    found: dict[str, Any] = {}
    for option in OPTIONS:
        for target in option.sets.split():
            holder, _, field = target.partition(".")
            if holder == group and _SET_BY[target] == 1:
                found[field] = values.get(option.name, option.default)
    return found


def check_cluster(values: Mapping[str, Any]) -> None:
    """Raise OptionError unless exactly one option names the cluster.

    There is no default. With a default, a job without the option would send production data to a
    broker in the working directory, and the query would seem to work.
    """
    servers, path = values["kafka.bootstrap.servers"], values["path"]
    if servers is None and path is None:
        raise OptionError(
            "kafka.bootstrap.servers",
            None,
            "set it to the addresses of the cluster's brokers, such as "
            '.option("kafka.bootstrap.servers", "host:9092"), or give a path for an embedded '
            'broker with its data there, such as .load(".txnlog"), .start(".txnlog") or '
            '.save(".txnlog")',
        )
    if servers is not None and path is not None:
        raise OptionError(
            "path",
            path,
            f"remove it or kafka.bootstrap.servers={servers!r}: path is for an embedded broker, "
            "and only one of them can be meant",
        )
    if path is not None and values["kafka.security.protocol"] != "PLAINTEXT":
        raise OptionError(
            "kafka.security.protocol",
            values["kafka.security.protocol"],
            "remove it: an embedded broker listens on this machine, in PLAINTEXT",
        )


def _find_option(name: str, text: str, use: Use) -> Option | None:
    """Return the option of this name, or None if it is accepted without effect, which is logged."""
    lower = name.lower()
    option = _BY_NAME.get(lower)
    if option is not None and use & option.use:
        return option
    if lower in _NO_EFFECT and use & NO_EFFECT[_NO_EFFECT[lower]][0]:
        _tell_no_effect(_NO_EFFECT[lower], NO_EFFECT[_NO_EFFECT[lower]][1])
        return None
    if option is not None and not lower.startswith(PREFIX):
        raise OptionError(_SPELLINGS[lower], None, f"only {_uses(option.use)}; remove it here")
    if option is not None:
        _tell_no_effect(option.name, f"it is only {_uses(option.use)}")
        return None
    if lower in _NO_EFFECT:
        where = _uses(NO_EFFECT[_NO_EFFECT[lower]][0])
        raise OptionError(_NO_EFFECT[lower], None, f"only {where}; remove it here")
    config = config_of(lower)
    if config is None:
        raise OptionError(name, None, f"remove it: this option is not known{_hint(lower)}")
    if config.standing is Support.REFUSED:
        raise OptionError(lower, None, f"remove it: {config.why}")
    if config.allows is not None and not config.allows(text):
        raise OptionError(lower, text, config.allowed)
    _tell_no_effect(lower, config.why)
    return None


def _tell_no_effect(name: str, why: str) -> None:
    warn_once(logger, ("option", name), "option %s has no effect: %s", name, why)


def _hint(lower: str) -> str:
    """Return a hint with the known name that was probably meant, or "".

    Names are compared without the prefix `kafka.`: the prefix would make all of them similar, and
    the user may have forgotten it or added it wrongly.
    """
    plain = {n: s for n, s in _SPELLINGS.items() if not n.startswith(PREFIX)}
    kafkas = {n.removeprefix(PREFIX): n for n in KAFKA_CONFIGS}
    wanted = lower.removeprefix(PREFIX)
    own, other = (kafkas, plain) if lower.startswith(PREFIX) else (plain, kafkas)
    if wanted in other:
        return f", did you mean {other[wanted]}?"
    import difflib  # imported here, because it is slow and only a wrong name needs it

    close = difflib.get_close_matches(wanted, own, n=1, cutoff=HINT_RATIO_MIN)
    return f", did you mean {own[close[0]]}?" if close else ""


def _uses(use: Use) -> str:
    words = {
        Use.READ_STREAM: "readStream",
        Use.READ_BATCH: "read",
        Use.WRITE_STREAM: "writeStream",
        Use.WRITE_BATCH: "write",
    }
    return "for " + " and ".join(word for flag, word in words.items() if flag & use)

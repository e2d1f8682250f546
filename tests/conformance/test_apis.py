"""Requests and versions that a broker names in ApiVersions: the columns of docs/broker/apis.md."""

from __future__ import annotations

import re
from pathlib import Path

from support.raw.raw import message_class

from txnlog_kafka.wire.messages import ApiKey

PAGE = Path(__file__).parents[2] / "docs" / "broker" / "apis.md"
ROW = re.compile(r"^\| (\d+) \| (\w+) \| (\S+) \| (\S+)( in a cluster)? \| (.*)\|$", re.MULTILINE)


def test_the_page_of_apis_has_what_the_broker_names(broker_name, connection):
    text = PAGE.read_text(encoding="utf-8")
    rows = ROW.findall(text)
    assert len(rows) == text.count("\n| ") - 1
    wrong = [
        n for _, n, kafka, ours, part, why in rows if (kafka != ours or bool(part)) != bool(why)
    ]
    assert wrong == [], "a difference without its reason, or a reason without a difference"
    message = message_class(ApiKey.API_VERSIONS)(
        client_software_name="raw", client_software_version="1"
    )
    told = {
        each.api_key: "-".join(map(str, sorted({each.min_version, each.max_version})))
        for each in connection.ask(message, 5).api_keys
    }
    if broker_name == "apache_kafka":
        assert {int(key): kafka for key, _, kafka, *_ in rows} == told
    else:
        is_alone = broker_name == "broker_sim"
        assert told == {
            int(key): ours
            for key, _, _, ours, part, _ in rows
            if ours != "-" and not (is_alone and part)
        }

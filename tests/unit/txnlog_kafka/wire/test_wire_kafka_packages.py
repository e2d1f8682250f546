"""kafka-python's clients are imported by who asks for them, and by nobody else."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def test_the_wire_and_its_messages_do_not_import_kafka_pythons_clients():
    seen = run(
        "import sys\n"
        "from txnlog_kafka.wire.messages import APIS, ApiKey\n"
        "APIS[ApiKey.PRODUCE].request, APIS[ApiKey.CREATE_TOPICS].response\n"
        "print(*[name for name in sys.modules if name.startswith('kafka.')])"
    ).split()
    assert "kafka.protocol.admin.topics" in seen
    assert "kafka.protocol.admin.acl" not in seen
    assert not [name for name in seen if name.startswith(("kafka.consumer", "kafka.admin"))]


@pytest.mark.parametrize("first", ["import txnlog_kafka.wire", "import kafka"])
def test_whoever_uses_kafka_python_beside_us_finds_all_of_it(first):
    text = run(
        f"{first}\n"
        "import txnlog_kafka.wire.messages\n"
        "from kafka import *\n"
        "import kafka, kafka.admin, kafka.net, kafka.protocol.consumer\n"
        "from kafka.protocol.admin import CreateTopicsRequest\n"
        "from kafka.net import KafkaConnection\n"
        "import kafka.protocol.admin.topics as topics\n"
        "assert CreateTopicsRequest is topics.CreateTopicsRequest\n"
        "assert kafka.KafkaConsumer is KafkaConsumer\n"
        "print(kafka.__version__, KafkaProducer.__name__, kafka.protocol.consumer.IsolationLevel)"
    )
    assert "KafkaProducer" in text


def test_a_name_that_kafka_python_does_not_have_is_an_attribute_error():
    text = run(
        "import txnlog_kafka.wire, kafka\n"
        "for _ in range(2):\n"
        "    try: kafka.NoSuchThing\n"
        "    except AttributeError as error: print(error)"
    )
    assert text.splitlines() == ["module 'kafka' has no attribute 'NoSuchThing'"] * 2


def test_threads_that_ask_at_once_get_the_same():
    text = run(
        "import txnlog_kafka.wire, kafka, threading\n"
        "barrier, found = threading.Barrier(8), []\n"
        "def ask():\n"
        "    barrier.wait()\n"
        "    found.append(kafka.KafkaAdminClient)\n"
        "threads = [threading.Thread(target=ask) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(len(found), len(set(found)))"
    )
    assert text.split() == ["8", "1"]

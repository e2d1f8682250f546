"""Process-local objects: one of each kind in a process, and not inherited by a forked child."""

from __future__ import annotations

import gc
import os
import threading

from txnlog_spark.process_local import Frozen, process_local


class Kept:
    """Anything that a process keeps."""


class OtherKept:
    """Something else that it keeps."""


def test_a_process_has_one_object_of_a_kind() -> None:
    first = process_local(Kept)
    assert process_local(Kept) is first
    assert process_local(OtherKept) is not first


def test_threads_that_ask_at_the_same_time_are_given_the_same_object() -> None:
    meeting = threading.Barrier(2)

    class Slow:
        """Both threads are making one before either has made it."""

        def __init__(self) -> None:
            meeting.wait(timeout=600)

    found: list[Slow] = []
    threads = [threading.Thread(target=lambda: found.append(process_local(Slow))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]


def test_a_forked_worker_has_none_of_its_parent() -> None:
    parents = process_local(Kept)
    child = os.fork()
    if child == 0:
        os._exit(0 if process_local(Kept) is not parents else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert process_local(Kept) is parents


def test_what_a_worker_has_loaded_is_left_to_no_later_collection_and_what_comes_is() -> None:
    child = os.fork()
    if child == 0:
        gc.unfreeze()
        process_local(Frozen)
        loaded = gc.get_freeze_count()
        later = [[] for _ in range(100)]
        process_local(Frozen)
        found = loaded > 1000 and gc.get_freeze_count() <= loaded
        os._exit(0 if found and all(map(gc.is_tracked, later)) else 1)
    assert os.waitpid(child, 0)[1] == 0

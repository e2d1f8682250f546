"""A run: all batches of one start of a query share a run id, and each start has another one.

The test pins Spark's behaviour: when a query is started, Spark makes one instance of a data source
for the query's commits, and keeps the instance.
"""

from __future__ import annotations

import json
from typing import Any


def recorded(pipe: Any) -> dict[str, Any]:
    """Return the checkpoint's record of the batch that was begun last."""
    return dict(json.loads((pipe.checkpoint / "txnlog" / "attempt.json").read_text()))


def test_all_batches_of_a_run_have_one_run_id_and_each_restart_ends_one(pipe) -> None:
    ended: list[str] = []
    for number in range(3):
        rows = pipe.stream().select("key", "value")
        query = pipe.write(rows).trigger(processingTime="100 milliseconds").start()
        seen = []
        try:
            for value in range(3):
                pipe.feed([f"{number}-{value}"])
                query.processAllAvailable()
                seen.append(recorded(pipe))
        finally:
            query.stop()
        assert [each["batch_id"] for each in seen] == list(range(3 * number, 3 * number + 3))
        (run_id,) = {each["run_id"] for each in seen}
        assert run_id not in ended
        assert all(each["ended_runs"] == ended for each in seen)
        ended = [*ended, run_id]
    assert pipe.output_values() == sorted(f"{n}-{value}" for n in range(3) for value in range(3))

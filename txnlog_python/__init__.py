"""`txnlog-python`: Spark's Python processes, forked from one that has imported their modules.

Spark starts an interpreter for each source of each query, and for each kind of planner, runner and
worker; each imports PySpark out of a zip, which compiles it each time. `txnlog-python` takes the
place of `python` in PYSPARK_PYTHON, for any PySpark application:

- `command` is the client, which runs in the place of Python. It hands its arguments, environment
  and standard streams over, waits, and ends as the forked process has ended.
- `server` imports once, and forks. There is one for each application (each JVM) and set-up of the
  interpreter; it ends with that JVM.

The package needs nothing but the standard library.
"""

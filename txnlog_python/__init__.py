"""`txnlog-python`: Spark's Python processes, forked from a process that has imported their modules.

Spark starts an interpreter for each source of each query, and for each kind of planner, runner and
worker; each interpreter imports PySpark out of a zip, and compiles it each time. `txnlog-python`
takes the place of `python` in PYSPARK_PYTHON, for any PySpark application:

- `command` is the client, which runs in the place of Python. It hands its arguments, environment
  and standard streams over, waits, and ends as the forked process has ended.
- `server` imports once, and forks. Each application (each JVM) has a server for each set-up of the
  interpreter; a server ends with its JVM.

The package needs nothing but the standard library.
"""

"""Environment variables by which a test and the processes that fail for it know of each other."""

from __future__ import annotations

ARMED_VARIABLE = "TXNLOG_FAILPOINTS"
"""The failpoints in words, see `failpoints.parse_failpoints`, or `@` and a file with them."""
FIRED_VARIABLE = "TXNLOG_FAILPOINTS_FIRED"
"""A file to which each failpoint is added when it acts; it acts once."""
REACHED_VARIABLE = "TXNLOG_FAILPOINTS_REACHED"
"""A file to which each step is added that a process reaches."""

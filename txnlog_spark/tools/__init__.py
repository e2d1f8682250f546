"""Commands for people: `python -m txnlog_spark`."""

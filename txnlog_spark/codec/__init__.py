"""Arrow columns to record batches and back, whole columns at a time.

`encode` makes finished record batches with blank producer fields, `decode` turns Fetch answers into
columns, `partitioner` is Kafka's default partitioner, `scatter` splits rows by partition. The slow
obvious twin of each lives in the tests; `txnlog_kafka.wire.records` is the scalar codec.
"""

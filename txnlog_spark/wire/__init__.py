"""The contract that both sides of the wire share: declarations, no clock, no socket.

`messages` names Kafka's requests and responses and the supported version ranges, `framing` turns
bytes into frames and frames into messages, `records` has the record batch header, the control
records and a plain scalar codec for small batches, `errors` Kafka's error codes.
"""

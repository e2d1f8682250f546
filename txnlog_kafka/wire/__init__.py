"""The contract that both sides of the wire share: declarations, no clock, no socket.

`messages` names Kafka's requests and responses and the supported version ranges, `framing` turns
bytes into frames and frames into messages, `records` has the record batch header, the control
records and a plain scalar codec for small batches, `compression` the codecs of batches, `varint`
the integers in both, `errors` Kafka's error codes. `schemas` has the definitions of the messages,
which `schema` reads, `structs` makes classes of, and `encoder` and `decoder` compile. `sasl` is a
client's side of a login.
`invariants` has the checks of our own state, `topics` the names of partitions.
"""

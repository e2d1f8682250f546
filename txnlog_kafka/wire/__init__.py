"""Contract that both sides of the wire share: declarations, no clock, no socket.

`messages` names Kafka's requests and responses and the supported version ranges, `framing` turns
bytes into frames and frames into messages, `records` has the record batch header, the control
records and a plain scalar codec for small batches, `compression` the codecs of batches, `varint`
the integers in both, `error_codes` Kafka's error codes. `schemas` has the definitions of the
messages; `schema` reads them, `structs` makes classes of them, and `encoder` and `decoder` compile
them. `conversation` has the requests of one connection and their answers in order, `login` a
client's login on it, `sasl` the mechanisms of logins. `invariants` has the checks of our own state,
`topic_partition` the names of partitions.
"""

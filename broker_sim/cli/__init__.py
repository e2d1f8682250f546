"""Commands for people: look at and change what a broker holds, and read its files.

`topics`, `groups` and `transactions` talk to any Kafka broker with the connector's own client;
`dump` reads files, needs no broker and never writes. Nothing of the broker's core is used but what
knows its file formats.
"""

"""Commands for people: show and change the data of a broker, and read its files.

`topics`, `groups` and `transactions` talk to any Kafka broker with the connector's own client;
`dump` reads files, needs no broker and never writes. The commands use only the parts of the
broker's core that know its file formats.
"""

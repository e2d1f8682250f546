"""The formats of a record's value that the connector reads and writes itself, column by column."""

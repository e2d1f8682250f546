"""Where fields of a record batch's header lie that the product only reads with all the others."""

LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
BASE_SEQUENCE_AT = 53

"""Values with a format: JSON, Avro, Protobuf and text as columns."""

"""Every option of the connector: declared once, read once."""

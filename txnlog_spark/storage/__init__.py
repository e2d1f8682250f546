"""Storage for files that outlive a process: local disks, mounted volumes and object stores.

`location` parses a user's text (`s3a://bucket/checkpoints/orders`), `file_store` declares the
operations on files, `local`, `arrow` and `azure` implement them, and `connect` chooses an
implementation and finds the credentials.
"""

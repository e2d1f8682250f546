"""Where files lie that outlive a process: local disks, mounted volumes and object stores.

`location` reads what a user writes (`s3a://bucket/checkpoints/orders`), `files` says what can be
done with files, `local` and `arrow` do it, `connect` picks one and finds the credentials.
"""

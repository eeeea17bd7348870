"""What a job is given besides its code: where inputs come from, and folders packed as trees of the store."""

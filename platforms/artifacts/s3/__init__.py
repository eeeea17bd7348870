"""The blob store in an S3 bucket, of AWS or of any S3-compatible server."""

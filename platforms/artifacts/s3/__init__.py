"""The blob store in an S3 bucket, or in anything else that speaks S3."""

"""A local stand-in for SageMaker training jobs that really runs them; S3, CloudWatch and STS are moto's."""

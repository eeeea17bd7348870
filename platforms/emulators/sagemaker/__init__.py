"""A local emulator of SageMaker training jobs that really runs them; S3, CloudWatch and STS are moto's."""

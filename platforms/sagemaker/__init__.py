"""Amazon SageMaker training jobs: a session is a training job named by its launch key. See docs/sagemaker.md."""

"""Amazon SageMaker training jobs: a session is a training job whose name is the launch key. See docs/sagemaker.md."""

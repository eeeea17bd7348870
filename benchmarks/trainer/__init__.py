"""The parts of bench_trainer.py: one figure of the trainer each."""

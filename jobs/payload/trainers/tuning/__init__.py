"""The parts of finetune.py, each one noun: rows, model, group of processes, loop, fingerprint, checkpoint."""

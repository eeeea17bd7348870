"""The parts of finetune.py: options, session, model, optimiser, loop, checkpoint, fingerprint, stages of TRL."""

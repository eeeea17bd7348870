"""Versions of models: made of checkpoints, evaluated by jobs, judged beside the cycle, promoted and taken back."""

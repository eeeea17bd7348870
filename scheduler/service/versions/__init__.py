"""Versions of models: made of checkpoints, evaluated by jobs, judged beside the cycle, put in force and taken back."""

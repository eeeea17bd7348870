"""Versions of models: created from checkpoints, evaluated by jobs, judged, promoted and rolled back."""

"""Deployment targets: where served models live, and how a release is activated and rolled back atomically."""

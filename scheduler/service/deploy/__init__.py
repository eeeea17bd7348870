"""Deployments: versions brought to targets beside the cycle, one at a time, finished or taken back after a crash."""

"""Deployments: versions are deployed to targets outside the cycle, and completed or rolled back after a crash."""

"""Slurm: sessions are batch jobs of a cluster, on this machine or by ssh, found again by their names and comments."""

"""Slurm: sessions are batch jobs of a cluster, local or over ssh, identified by job name and comment."""

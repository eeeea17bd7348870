"""The sandbox for code that a model wrote: no network, listed files only, and resource limits that kill the process."""

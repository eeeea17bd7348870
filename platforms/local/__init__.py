"""The local platform: sessions are detached processes on this machine, identified by launch key."""

"""The local platform: sessions are detached processes of this machine, found again by launch key."""

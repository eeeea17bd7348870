"""Makes a plan from a snapshot: a pure, reproducible function; each waiting job gets one reason."""

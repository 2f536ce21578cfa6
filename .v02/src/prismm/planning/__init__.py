"""From a problem to a scheme: what Auto takes, and what it did not."""

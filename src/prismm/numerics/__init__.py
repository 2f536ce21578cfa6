"""What does a matrix engine compute? Models of its arithmetic, a simulator that runs them, a probe that finds them."""

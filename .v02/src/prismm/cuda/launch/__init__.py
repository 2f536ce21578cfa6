"""Programs of launches, and the libraries that run them."""

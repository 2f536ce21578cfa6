"""Reports as HTML: pages that stand alone, and the pictures on them."""

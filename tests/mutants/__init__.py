"""Small faults in the product, and the tests that must fail with each of them."""

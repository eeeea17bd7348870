"""Small bugs put in by a program, one at a time, and which tests notice them."""

"""What a gateway imports."""

"""Read the log from anywhere, fold it again and compare views."""

"""Pure folds, one file a view. No I/O, no clock, no client."""

"""Provider exchanges written for this project, one JSON object a line."""

"""What runs: workers, the Faust app, the key keeper, and the wiring of processors to sinks."""

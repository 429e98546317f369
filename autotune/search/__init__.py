"""The search for the fastest configuration: space, models, sampler, loop."""

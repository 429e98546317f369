"""The search for the fastest configuration: study, sampler, surrogate and loop."""

"""What a training script says about its loaders: it is read, and never run."""

"""Loaders and datasets of other libraries, each made as its users make it; all data is generated.

Each function takes DataLoader settings as keywords. Those given by `--dataset` return what users have today if called
without arguments; dltune calls those given by `--loader` with the settings of each trial. Functions without parameters
return a dataset, for a DataLoader of torch.
"""

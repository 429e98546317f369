"""dltune.json, and the modules that training code imports."""

"""Who chooses a configuration: dltune, random search, loadtune, and settings that nobody measured."""

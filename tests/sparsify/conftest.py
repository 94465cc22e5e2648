"""Its folder has the modules that tests of all rooms share."""
